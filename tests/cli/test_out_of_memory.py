"""A command without memory ends in one line, wherever it runs out."""

import resource
import subprocess
import sys

import pytest

from deeppool.cli.app import run_command
from deeppool.cli.out_of_memory import OUT_OF_MEMORY, ran_out_of_memory
from deeppool.errors import InvalidValueError

PROFILE = ("profile", "squeezenet1_1", "--input-shape", "3,64,64", "--batch-sizes", "1", "-o")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts mapped memory on Linux")
def test_a_command_that_cannot_load_its_libraries_says_so_in_one_line(tmp_path) -> None:
    limit = 150 * 2**20
    ended = subprocess.run(
        [sys.executable, "-m", "deeppool.cli", *PROFILE, tmp_path / "profile.json"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "error: this process ran out of memory (free some, or raise its limit: ulimit -v)\n"


FILLED = """
import resource
import psutil
import deeppool.cli.app as commands
from deeppool.cli.out_of_memory import ran_out_of_memory
filled = None

def fill():
    global filled
    mapped = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (mapped, resource.RLIM_INFINITY))
    for size in (2**20, 2**16, 2**13, *range(1024, 0, -16)):
        try:
            while True:
                filled = filled, bytes(size)
        except MemoryError:
            pass
    FAIL

commands.app = fill
commands.run_command()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts mapped memory on Linux")
@pytest.mark.parametrize("fail", ['raise RuntimeError("std::bad_alloc")', "bytes(2**20)", "raise SystemError"])
def test_a_command_whose_last_bytes_are_taken_says_so_in_one_line(fail: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FILLED.replace("FAIL", fail)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (1, f"error: {OUT_OF_MEMORY}\n")


def test_an_error_that_cannot_be_reported_for_lack_of_memory_is_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app() -> None:
        raise ValueError("wrong")

    def report(error: Exception) -> str:
        raise MemoryError

    monkeypatch.setattr("deeppool.cli.app.app", app)
    monkeypatch.setattr("deeppool.cli.app.report_internal_error", report)
    monkeypatch.setattr("atexit.register", lambda ignored: None)
    with pytest.raises(SystemExit) as ended:
        run_command()
    assert (ended.value.code, capsys.readouterr().err) == (1, f"error: {OUT_OF_MEMORY}\n")


AT_ITS_LIMIT = """
import resource
import psutil
from deeppool.cli.out_of_memory import ran_out_of_memory
error = SystemError("error return without exception set")
mapped = psutil.Process().memory_info().vms
for room in (2**20, 2**30):
    resource.setrlimit(resource.RLIMIT_AS, (mapped + room, resource.RLIM_INFINITY))
    print(ran_out_of_memory(error), ran_out_of_memory(ValueError("wrong")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts mapped memory on Linux")
def test_an_error_of_c_code_that_gives_no_reason_counts_only_where_no_memory_is_left() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_ITS_LIMIT], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True", "False", "False", "False"]


CANNOT_LOOK = """
import resource
import psutil
from deeppool.cli.out_of_memory import ran_out_of_memory

def look():
    raise MemoryError

psutil.Process = look
resource.setrlimit(resource.RLIMIT_AS, (2**40, resource.RLIM_INFINITY))
print(ran_out_of_memory(SystemError("error return without exception set")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts mapped memory on Linux")
def test_a_process_that_cannot_even_look_at_its_memory_has_none() -> None:
    # In a process of its own: threads of this one look at processes, too.
    ended = subprocess.run([sys.executable, "-c", CANNOT_LOOK], capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"


def test_the_cause_of_an_error_counts_and_other_errors_do_not() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError as cause:
            raise ValueError("unreadable") from cause
    except ValueError as error:
        assert ran_out_of_memory(error)
    assert ran_out_of_memory(OSError(12, "Cannot allocate memory"))
    assert ran_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 GB"))
    assert ran_out_of_memory(RuntimeError("std::bad_alloc"))
    assert not ran_out_of_memory(OSError(28, "No space left on device"))
    assert not ran_out_of_memory(InvalidValueError("memory must be positive, got 0"))

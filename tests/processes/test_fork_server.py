"""Processes forked by the fork server behave like new ones and never outlive their launcher."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deeppool.errors import RunError
from deeppool.processes import fork_server_client, managed_process, stop_detector
from deeppool.processes.fork_server import STREAMS
from deeppool.processes.fork_server_client import ForkServerClient, fork_server
from deeppool.processes.managed_process import ManagedProcess, receive
from tests.processes.children import children, gone, kill_all
from tests.processes.fork_server_child import SECONDS
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only"),
]
MODULE = "tests.processes.fork_server_child"
HOLDING = "tests.processes.holding_child"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ForkServerClient]:
    """A fork server that no other test shares."""
    found = ForkServerClient()
    monkeypatch.setenv("DEEPPOOL_TEST_FOLDER", str(tmp_path))
    yield found
    found.close()


def test_a_forked_process_behaves_like_a_new_one(own: ForkServerClient, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("ANSWER = 42\n")
    with (
        ManagedProcess(MODULE, "one", fork_server=own, folder=tmp_path) as one,
        ManagedProcess(MODULE, "two", fork_server=own) as two,
    ):
        first, second = (describe(child) for child in (one, two))
        assert first["pid"] == one.process.pid
        assert first["group"] == first["pid"]
        assert str(first["title"]).strip("\0 ") == f"{MODULE}: one"
        assert psutil.Process(one.process.pid).environ()["PATH"] == os.environ["PATH"]
        assert (first["cwd"], second["cwd"]) == (str(tmp_path), os.getcwd())
        assert (first["only_here"], second["only_here"]) == (42, None)
        assert first["environment"] == str(tmp_path)
        assert first["drawn"] != second["drawn"]
        assert first["open"] == second["open"]
        # The server itself collects no garbage.
        assert first["collects"] and second["collects"]
        # Its CPU time starts at the fork, with torch already imported.
        needed = psutil.Process(own._process.pid).cpu_times().user
        assert (one.cpu_seconds() or 0) + (two.cpu_seconds() or 0) < needed
        two.send("fail")
        with pytest.raises(RunError, match="two ended with exit code 3: the last words"):
            receive(two, SECONDS)
    assert one.exit_code() == 0
    assert (tmp_path / "exit-handler-ran").is_file()
    assert not (tmp_path / "finalized").exists()


@pytest.mark.slow
@pytest.mark.parametrize("forked", [True, False])
def test_a_process_imports_what_its_launcher_can_import(
    own: ForkServerClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forked: bool
) -> None:
    # As a notebook does that adds the folder of its models, here by its name from the working folder.
    (tmp_path / "only_here.py").write_text("ANSWER = 42\n")
    # The folder may lie below that of Python, as /usr/src/app does.
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, os.path.relpath(tmp_path)])
    with ManagedProcess(MODULE, "it", launcher=() if forked else ("env",), fork_server=own) as child:
        described = describe(child)
        added = psutil.Process(child.process.pid).environ().get("PYTHONPATH", "")
    # Packages would come before Python's own modules.
    assert "site-packages" not in added
    assert described["cwd"] == os.getcwd()
    assert described["only_here"] == 42


def ended(process: psutil.Process) -> bool:
    """Waits for the end of a process; False if it still runs after ``SECONDS``."""
    deadline = time.monotonic() + SECONDS
    while not gone(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return gone(process)


def describe(child: ManagedProcess) -> dict[str, object]:
    child.send("describe")
    return receive(child, SECONDS)


@pytest.mark.slow
def test_a_forked_process_has_temporary_files_where_its_own_environment_says(
    own: ForkServerClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ManagedProcess(MODULE, "before", fork_server=own) as before:
        assert describe(before)["temporary"] == tempfile.gettempdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with ManagedProcess(MODULE, "after", fork_server=own) as after:
        assert describe(after)["temporary"] == str(tmp_path)


def test_a_request_may_be_larger_than_a_message(own: ForkServerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    # A notebook's variables alone may be more than the 64 KiB that a message once had; 1 MiB is more than a socket's.
    monkeypatch.setenv("DEEPPOOL_TEST_LARGE", 2**20 * "x")
    with ManagedProcess(HOLDING, "large", fork_server=own) as child:
        assert 2**20 < int(str(describe(child)["environment_size"])) < 2**20 + 2**17


def test_processes_that_a_forked_process_started_end_with_it(own: ForkServerClient) -> None:
    child = ManagedProcess(HOLDING, "parent", fork_server=own)
    child.send("start")
    grandchild = psutil.Process(receive(child, SECONDS)["pid"])
    os.kill(child.process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match="parent was killed by signal 9"):
        receive(child, SECONDS)
    child.close()
    assert ended(grandchild)


def test_processes_do_not_outlive_a_fork_server_that_was_killed(own: ForkServerClient) -> None:
    child = ManagedProcess(HOLDING, "child", fork_server=own)
    process = psutil.Process(int(str(describe(child)["pid"])))
    os.kill(own._process.pid, signal.SIGKILL)
    with pytest.raises(
        RunError, match=r"child was ended with the process .* forked from, which was killed by signal 9"
    ):
        receive(child, SECONDS)
    child.close()
    assert ended(process)
    with pytest.raises(RunError, match="cannot start: the process that it is forked from was killed by signal 9"):
        ManagedProcess(MODULE, "late", fork_server=own)
    with ManagedProcess(MODULE, "next", fork_server=fork_server()) as another:
        describe(another)


@pytest.mark.slow
def test_a_stopped_fork_server_ends_with_its_processes(own: ForkServerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_detector, "STOPPED_SECONDS", 1.0)
    child = ManagedProcess(HOLDING, "child", fork_server=own)
    process = psutil.Process(int(str(describe(child)["pid"])))
    own._process.send_signal(signal.SIGSTOP)
    with pytest.raises(RunError, match=r"child was ended with the process .* which was stopped by a signal for 1 s"):
        receive(child, SECONDS)
    child.close()
    assert ended(process)


def test_a_process_does_not_wait_for_a_stopped_fork_server(
    own: ForkServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_detector, "STOPPED_SECONDS", 1.0)
    own._process.send_signal(signal.SIGSTOP)
    with pytest.raises(RunError, match=r"late cannot start: .* was stopped by a signal for 1 s"):
        ManagedProcess(HOLDING, "late", fork_server=own)


def test_a_stopped_process_is_killed_alone(own: ForkServerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_detector, "STOPPED_SECONDS", 1.0)
    with ManagedProcess(HOLDING, "other", fork_server=own) as other:
        child = ManagedProcess(HOLDING, "child", fork_server=own)
        os.kill(int(str(describe(child)["pid"])), signal.SIGSTOP)
        with pytest.raises(RunError, match=r"child was stopped by a signal for 1 s, and then killed$"):
            receive(child, SECONDS)
        child.close()
        describe(other)


LAUNCHER = f"""
import sys
from deeppool.processes.fork_server_client import fork_server, import_and_fork
from deeppool.processes.managed_process import ManagedProcess, receive
if sys.argv[1] == "fork":
    import_and_fork("json", "{HOLDING}")
server = fork_server()
child = ManagedProcess("{HOLDING}", "child", fork_server=server)
for command in ("start", "hold"):
    child.send(command)
    print(receive(child, {SECONDS})["pid"], flush=True)
print(server._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("server", ["new process", "fork"])
@pytest.mark.parametrize("stopped", [False, True], ids=["hanging", "stopped"])
def test_processes_end_with_a_launcher_that_is_killed_together_with_the_fork_server(stopped: bool, server: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        _, child, parent = everything = [psutil.Process(int(launcher.stdout.readline())) for _ in range(3)]
        try:
            for process in (child, parent) if stopped else ():
                process.suspend()
            for process in (parent, launcher):
                process.kill()
            assert list(map(ended, everything)) == [True] * 3
        finally:
            kill_all(everything)


COMMAND = f"""
import json, signal, sys
from deeppool.errors import RunError
from deeppool.processes.fork_server_client import fork_server, import_and_fork
from deeppool.processes.managed_process import ManagedProcess, receive
print("printed", end=" ")
opened = open("/proc/self/status")
signal.signal(signal.SIGTERM, lambda *_: None)
import_and_fork("torch", "{MODULE}")
with ManagedProcess("{MODULE}", "one", fork_server=fork_server()) as child:
    child.send("describe")
    found = receive(child, {SECONDS})
    child.send("fail")
    try:
        receive(child, {SECONDS})
    except RunError as error:
        found["error"] = str(error)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_process_that_is_forked_from_a_fork_of_a_command_behaves_like_a_new_one(own: ForkServerClient) -> None:
    with ManagedProcess(MODULE, "one", fork_server=own) as child:
        usual = describe(child)
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert (done.stdout[:8], done.stderr) == ("printed ", "")
    found = json.loads(done.stdout[8:])
    assert found["group"] == found["pid"]
    assert found["title"].strip("\0 ") == f"{MODULE}: one"
    alike = ("cwd", "environment", "open", "collects", "main", "terminates")
    assert {name: found[name] for name in alike} == {name: usual[name] for name in alike}
    assert found["drawn"] != usual["drawn"]
    assert found["prepared"] == [[found["parent"], 1]]
    assert found["error"] == "one ended with exit code 3: the last words"


@pytest.mark.slow
def test_no_line_of_a_command_is_named_as_the_one_that_its_worker_is_in(tmp_path: Path) -> None:
    """Of a rank that hung in torch, a line of the library that reads a command's options was named."""
    command = tmp_path / "command.py"
    command.write_text(f"""
from deeppool.processes.fork_server_client import fork_server, import_and_fork
from deeppool.processes.managed_process import ManagedProcess, receive
import_and_fork("json", "deeppool.execution.worker")
with ManagedProcess("deeppool.execution.worker", "one", fork_server=fork_server()) as worker:
    print(receive(worker, {SECONDS}))
""")
    done = subprocess.run([sys.executable, command], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.stderr == ""
    assert "'what': 'its start'" in done.stdout
    assert "'at': None" in done.stdout


BEFORE = {
    "nothing": "",
    "a thread runs": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "torch is loaded": "sys.modules['torch'] = sys",
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_command_forks_its_fork_server_only_before_anything_happens(before: str) -> None:
    program = f"""
import sys, threading, psutil
from deeppool.processes.fork_server_client import fork_server, import_and_fork
{BEFORE[before]}
import_and_fork("json", "{HOLDING}")
print(psutil.Process(fork_server()._process.pid).cmdline()[0].strip())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=True)
    forked = "deeppool.processes.fork_server\n"
    assert (done.stdout, done.stderr) == (forked if before == "nothing" else f"{sys.executable}\n", "")


def test_another_fork_server_starts_when_variables_that_libraries_read_when_loaded_change(
    own: ForkServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That of other tests stays.
    monkeypatch.setattr(fork_server_client, "_client", own)
    assert fork_server() is own
    with ManagedProcess(HOLDING, "old", fork_server=own) as old:
        monkeypatch.setenv("DEEPPOOL_TEST_FOLDER", "elsewhere")
        assert fork_server() is own
        with ManagedProcess(HOLDING, "new", fork_server=own) as new:
            assert describe(new)["environment"] == "elsewhere"
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        after = fork_server()
        assert after is not None
        assert after is not own
        old.send("start")
        receive(old, SECONDS)
    own._process.wait(SECONDS)
    after.close()


def test_the_variable_that_torch_sets_at_the_first_export_starts_no_other_fork_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = fork_server()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert fork_server() is before


def test_what_modules_register_is_called_once_before_forks_and_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEEPPOOL_TEST_FOLDER", "elsewhere")
    # It has made the warm-up capture, too: see tests.loaded_before_forks.
    shared = fork_server()
    assert shared is not None
    with ManagedProcess(MODULE, "1", fork_server=shared) as one, ManagedProcess(MODULE, "2", fork_server=shared) as two:
        first, second = (describe(child) for child in (one, two))
    assert first["prepared"] == second["prepared"] == [[shared._process.pid, 1]]


def test_a_module_that_cannot_be_imported_fails_as_in_a_new_process(own: ForkServerClient) -> None:
    child = ManagedProcess("tests.no_such_module", "it", fork_server=own)
    with pytest.raises(RunError, match="it ended with exit code 1: ModuleNotFoundError"):
        receive(child, SECONDS)
    child.close()


def test_a_fork_server_that_was_stopped_is_ended(own: ForkServerClient) -> None:
    own._process.send_signal(signal.SIGSTOP)
    own.close()
    assert own._process.returncode == -signal.SIGKILL


def test_a_process_that_cannot_be_forked_is_no_other_ones_end(own: ForkServerClient) -> None:
    server = own._process.pid
    with ManagedProcess(HOLDING, "first", fork_server=own) as first:
        describe(first)
        # All files that it may open are open, and then those of a request just fit.
        for free, starts in ((0, False), (STREAMS, False), (STREAMS + 1, True)):
            used = {int(file.name) for file in Path(f"/proc/{server}/fd").iterdir()}
            limit = sorted({*range(len(used) + free + 1)} - used)[free]
            before = resource.prlimit(server, resource.RLIMIT_NOFILE)
            resource.prlimit(server, resource.RLIMIT_NOFILE, (limit, before[1]))
            try:
                with ManagedProcess(HOLDING, "late", fork_server=own):
                    assert starts
            except RunError as error:
                assert str(error).startswith("late cannot start: Too many open files (this process may open no more")
                assert not starts
            resource.prlimit(server, resource.RLIMIT_NOFILE, before)
        own.preload("tests.processes.no_forks")
        with pytest.raises(RunError, match=r"late cannot start: Resource temporarily unavailable \(no more processes"):
            ManagedProcess(HOLDING, "late", fork_server=own)
        describe(first)
    assert first.exit_code() == 0


WITHOUT_FILES = f"""
import os, psutil, sys
from deeppool.errors import RunError
from deeppool.processes import fork_server_client
from deeppool.processes.managed_process import ManagedProcess, receive
from deeppool.processes.stop_detector import is_stopped
fork_server_client.START_SECONDS = 5
first = ManagedProcess("{HOLDING}", "first")
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
print(is_stopped(first.process.pid))
for free in range(9):
    try:
        ManagedProcess("{HOLDING}", "late").close()
        print("starts")
    except RunError as error:
        print(error)
    os.close(held.pop())
first.send("describe")
print(receive(first, {SECONDS})["event"])
for each in held:
    os.close(each)
first.close()
"""


def test_a_process_that_may_open_no_more_files_says_so_at_once_and_keeps_what_it_started() -> None:
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-c", WITHOUT_FILES],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stderr == ""
    stopped, *starts, answer = done.stdout.splitlines()
    assert (stopped, answer) == ("False", "done")
    refused = "late cannot start: Too many open files (this process may open no more: ulimit -n raises its limit)"
    failed = starts.count(refused)
    assert 0 < failed < len(starts)
    assert starts == [refused] * failed + ["starts"] * (len(starts) - failed)


@pytest.mark.parametrize("forked", [True, False])
@pytest.mark.parametrize("thread", ["_listen", "_reap"])
def test_a_process_without_threads_for_it_does_not_go_on(
    own: ForkServerClient, monkeypatch: pytest.MonkeyPatch, thread: str, forked: bool
) -> None:
    start = threading.Thread.start

    def fails(self: threading.Thread) -> None:
        if getattr(self, "_target").__name__ == thread:  # noqa: B009  private
            raise RuntimeError("can't start new thread")
        start(self)

    own.preload(HOLDING)
    before = children()
    monkeypatch.setattr(threading.Thread, "start", fails)
    with pytest.raises(RunError, match=r"it cannot start: can't start new thread \(no more processes or threads"):
        ManagedProcess(HOLDING, "it", launcher=() if forked else ("env",), fork_server=own)
    monkeypatch.undo()
    assert [each for each in children() if each not in before and not gone(each)] == []


FREEZER = Path("/sys/fs/cgroup/freezer")
"""Control groups of version 1 whose processes end only once they are thawed, as those in a call to a driver."""


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="processes may not be frozen here")
@pytest.mark.parametrize("forked", [True, False])
def test_a_process_that_does_not_end_when_it_is_killed_is_left_behind(
    own: ForkServerClient, monkeypatch: pytest.MonkeyPatch, forked: bool
) -> None:
    """One that tries a broken GPU, in a call to its driver."""
    monkeypatch.setattr(managed_process, "KILL_SECONDS", 1.0)
    frozen = FREEZER / f"deeppool-test-{os.getpid()}"
    child = ManagedProcess("deeppool.collocation.spinner", "it", launcher=() if forked else ("env",), fork_server=own)
    child.send("setup", core=None, run=None)
    receive(child, SECONDS)
    process = psutil.Process(child.process.pid)
    frozen.mkdir()
    try:
        (frozen / "cgroup.procs").write_text(str(process.pid))
        (frozen / "freezer.state").write_text("FROZEN")
        killing = threading.Thread(target=child.kill, daemon=True)
        killing.start()
        killing.join(60)
        assert not killing.is_alive()
        assert not gone(process)
    finally:
        (frozen / "freezer.state").write_text("THAWED")
        assert ended(process)
        wait_until(lambda: not (frozen / "cgroup.procs").read_text(), SECONDS, "the end of what was frozen")
        frozen.rmdir()

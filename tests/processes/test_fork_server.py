"""Children forked from a process that has torch loaded: as good as new ones, and never left behind."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deeppool.errors import RunError
from deeppool.processes.fork_server_client import ForkServerClient, fork_server
from deeppool.processes.managed_process import ManagedProcess, receive
from tests.processes.children import gone
from tests.processes.fork_server_child import SECONDS

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only"),
]
MODULE = "tests.processes.fork_server_child"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ForkServerClient]:
    """One that no other test shares."""
    found = ForkServerClient()
    monkeypatch.setenv("DEEPPOOL_TEST_FOLDER", str(tmp_path))
    yield found
    found.close()


def test_a_forked_child_is_as_good_as_a_new_process(own: ForkServerClient, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("ANSWER = 42\n")
    with (
        ManagedProcess(MODULE, "one", fork_server=own, folder=tmp_path) as one,
        ManagedProcess(MODULE, "two", fork_server=own) as two,
    ):
        first, second = (told(child) for child in (one, two))
        assert first["pid"] == one.process.pid
        assert first["group"] == first["pid"]
        assert str(first["title"]).strip("\0 ") == f"{MODULE}: one"
        assert psutil.Process(one.process.pid).environ()["PATH"] == os.environ["PATH"]
        assert (first["cwd"], second["cwd"]) == (str(tmp_path), os.getcwd())
        assert (first["only_here"], second["only_here"]) == (42, None)
        assert first["environment"] == str(tmp_path)
        assert first["drawn"] != second["drawn"]
        assert first["open"] == second["open"]
        # Its life begins when torch is there.
        needed = psutil.Process(own._process.pid).cpu_times().user
        assert (one.cpu_seconds() or 0) + (two.cpu_seconds() or 0) < needed
        two.send("fail")
        with pytest.raises(RunError, match="two ended with exit code 3: the last words"):
            receive(two, SECONDS)
    assert one.exit_code() == 0
    assert (tmp_path / "said-goodbye").is_file()


def ended(process: psutil.Process) -> bool:
    """Within some seconds."""
    deadline = time.monotonic() + SECONDS
    while not gone(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return gone(process)


def told(child: ManagedProcess) -> dict[str, object]:
    child.send("tell")
    return receive(child, SECONDS)


def test_what_a_child_started_dies_with_it(own: ForkServerClient) -> None:
    child = ManagedProcess(MODULE, "parent", fork_server=own)
    child.send("start")
    grandchild = psutil.Process(receive(child, SECONDS)["pid"])
    os.kill(child.process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match="parent was killed by signal 9"):
        receive(child, SECONDS)
    child.close()
    assert ended(grandchild)


def test_children_do_not_outlive_a_nursery_that_was_killed(own: ForkServerClient) -> None:
    child = ManagedProcess(MODULE, "child", fork_server=own)
    process = psutil.Process(int(str(told(child)["pid"])))
    os.kill(own._process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match="child was killed by signal 9"):
        receive(child, SECONDS)
    child.close()
    assert ended(process)
    with pytest.raises(RunError, match="cannot start: the process that it is forked from is gone"):
        ManagedProcess(MODULE, "late", fork_server=own)
    with ManagedProcess(MODULE, "next", fork_server=fork_server()) as another:
        told(another)


def test_a_child_may_have_a_nursery_with_its_modules_which_goes_with_it(own: ForkServerClient) -> None:
    heir = ManagedProcess("tests.processes.fork_server_heir", "heir", fork_server=own)
    grandchild = told(heir)
    process = psutil.Process(int(str(grandchild["pid"])))
    nursery_of_heir = psutil.Process(int(str(grandchild["parent"])))
    assert nursery_of_heir.ppid() == heir.process.pid
    assert str(grandchild["title"]).strip("\0 ") == f"{MODULE}: grandchild"
    assert grandchild["cwd"] == os.environ["HOME"]
    # Neither of the two has imported torch itself.
    needed = psutil.Process(own._process.pid).cpu_times().user
    assert float(str(grandchild["cpu"])) + nursery_of_heir.cpu_times().user < needed / 4
    os.kill(heir.process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match="heir was killed by signal 9"):
        receive(heir, SECONDS)
    heir.close()
    assert ended(process)
    assert ended(nursery_of_heir)


def test_libraries_that_read_their_environment_when_loaded_are_loaded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fork_server()
    assert before is not None
    with ManagedProcess(MODULE, "old", fork_server=before) as old:
        monkeypatch.setenv("DEEPPOOL_TEST_FOLDER", "elsewhere")
        assert fork_server() is before
        with ManagedProcess(MODULE, "new", fork_server=before) as new:
            assert told(new)["environment"] == "elsewhere"
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        after = fork_server()
        assert after is not None
        assert after is not before
        old.send("start")
        receive(old, SECONDS)
    before._process.wait(SECONDS)
    after.close()


def test_a_module_that_cannot_be_imported_says_so_as_a_new_process_would(own: ForkServerClient) -> None:
    child = ManagedProcess("tests.no_such_module", "it", fork_server=own)
    with pytest.raises(RunError, match="it ended with exit code 1: ModuleNotFoundError"):
        receive(child, SECONDS)
    child.close()


def test_a_nursery_that_was_stopped_is_ended_all_the_same(own: ForkServerClient) -> None:
    own._process.send_signal(signal.SIGSTOP)
    own.close()
    assert own._process.returncode == -signal.SIGKILL

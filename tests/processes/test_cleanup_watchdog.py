"""Folders and control groups are gone at the end of their process, however it ends."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.waiting import wait_until

SCRIPT = """
import sys
from pathlib import Path
from deeppool.processes.cleanup_watchdog import cleanup_watchdog
first, second, groups = map(Path, sys.argv[1:])
with cleanup_watchdog(first, second, groups=groups):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
@pytest.mark.parametrize("killed", [False, True])
def test_all_folders_and_the_groups_of_the_prefix_are_removed(killed: bool, tmp_path: Path) -> None:
    first, second, groups = tmp_path / "first", tmp_path / "second", tmp_path / "run"
    for folder in (first / "inside", second, tmp_path / "run-0", tmp_path / "run-1", tmp_path / "other-0"):
        folder.mkdir(parents=True)
    command = [sys.executable, "-c", SCRIPT, *map(str, (first, second, groups))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if killed:
            process.send_signal(signal.SIGKILL)
        process.communicate()
    wait_until(lambda: [path.name for path in tmp_path.iterdir()] == ["other-0"], 60, "the removal")


BESIDE_A_FORK = """
import os, sys
from pathlib import Path
from deeppool.processes import cleanup_watchdog
cleanup_watchdog.CLEANUP_SECONDS = 600
with cleanup_watchdog.cleanup_watchdog(Path(sys.argv[1])):
    fork = os.fork()
    if not fork:
        os.close(1)
        sys.stdin.read()
        os._exit(0)
print("over", flush=True)
os.waitpid(fork, 0)
"""


@pytest.mark.processes
def test_the_removal_does_not_wait_for_forks_of_its_process(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", BESIDE_A_FORK, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ended = threading.Timer(60, process.kill)
        ended.start()
        said = process.stdout.readline()
        ended.cancel()
        process.communicate()
    assert said == "over\n"
    assert list(tmp_path.iterdir()) == []

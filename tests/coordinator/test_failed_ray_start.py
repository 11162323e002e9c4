"""What is left of a Ray that does not start, and of one that is stopped."""

import math
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deeppool.coordinator import ray_connection
from deeppool.coordinator.ray_connection import Joined
from deeppool.errors import RunError

FAILS = """#!{python}
import pathlib, subprocess, sys
folder = sys.argv[-1]
worker = "import time; print(flush=True); time.sleep(600)"
process = subprocess.Popen(
    [{python!r}, "-c", worker, f"--log-dir={{folder}}/ray"], stdout=subprocess.PIPE, start_new_session=True
)
process.stdout.readline()
pathlib.Path(folder, "socket").touch()
pathlib.Path({told!r}).write_text(f"{{process.pid}} {{folder}}")
sys.exit("Failed to register worker to Raylet")
"""


@pytest.mark.processes
def test_a_ray_that_ends_while_it_starts_leaves_no_process_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, host = tmp_path / "told", tmp_path / "host"
    host.write_text(FAILS.format(python=sys.executable, told=str(told)))
    host.chmod(0o700)
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(ray_connection, "find_ray", lambda: None)
    monkeypatch.setattr(ray_connection, "state_folder", lambda: tmp_path / "state")
    monkeypatch.setattr(sys, "executable", str(host))
    with pytest.raises(RunError, match="Ray does not start: Failed to register worker to Raylet"):
        ray_connection.start_here(1)
    worker, folder = told.read_text().split()
    assert not psutil.pid_exists(int(worker)) or psutil.Process(int(worker)).status() == psutil.STATUS_ZOMBIE
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    "refused", [pytest.param(True, id="may not be killed"), pytest.param(False, id="does not end when it is killed")]
)
def test_a_process_that_names_the_folder_but_does_not_end_is_killed_once(
    refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, killed = tmp_path / "deeppool-ray-1", []
    folder.mkdir()

    def kill(process: psutil.Process) -> None:
        assert not killed
        killed.append(process.pid)
        if refused:
            raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "kill", kill)
    monkeypatch.setattr(ray_connection, "PROBE_SECONDS", 0.0)
    command = [sys.executable, "-c", "print(flush=True); input()", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        ray_connection._remove_all_of(str(folder))
        process.communicate(b"\n")
    assert killed == [process.pid]
    assert not folder.exists()


WITHOUT_INIT = """
import subprocess, time
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.processes
def test_a_ray_has_ended_also_where_nobody_waits_for_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_connection, "state_folder", lambda: tmp_path)
    monkeypatch.setattr(ray_connection, "STOP_SECONDS", math.inf)
    with subprocess.Popen([sys.executable, "-c", WITHOUT_INIT], stdout=subprocess.PIPE, text=True) as parent:
        try:
            host = psutil.Process(int(parent.stdout.readline()))
            ray_connection.leave(Joined("127.0.0.1:6379", host.pid))
            status = host.status()
        finally:
            parent.kill()
    assert status == psutil.STATUS_ZOMBIE


STAYS = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
time.sleep(600)
"""


@pytest.mark.processes
def test_a_ray_that_is_killed_because_it_does_not_end_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()
    monkeypatch.setattr(ray_connection, "state_folder", lambda: tmp_path)
    monkeypatch.setattr(ray_connection, "STOP_SECONDS", 0.0)
    words = [sys.executable, "-c", STAYS, ray_connection.HOST, "1", str(folder)]
    # Without the process that removes the folder, which is killed with it.
    with subprocess.Popen(words, stdout=subprocess.PIPE) as host:
        host.stdout.readline()
        ray_connection.leave(Joined("127.0.0.1:6379", host.pid))
    assert not folder.exists()

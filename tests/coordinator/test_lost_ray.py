"""What waits for a job of a Ray that has ended."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import psutil
import pytest

from deeppool.coordinator import client, ray_connection
from deeppool.coordinator.client import Coordinator
from deeppool.coordinator.ray_connection import Joined
from deeppool.errors import RunError


class GetTimeoutError(Exception):
    """As Ray's."""


class SilentRay:
    """Answers nothing, as Ray does while its control service is away; it ends after some looks, by its socket.

    Its clock is that of who asks: no look takes longer than it may.
    """

    def __init__(self, listener: socket.socket, ends_after: int) -> None:
        self.exceptions = SimpleNamespace(
            GetTimeoutError=GetTimeoutError, RayTaskError=type("Task", (Exception,), {}), RayActorError=OSError
        )
        self._listener, self._ends_after, self.looks, self.now = listener, ends_after, 0, 0.0

    def get(self, asked: object, timeout: float) -> None:
        self.looks += 1
        self.now += timeout
        if self.looks == self._ends_after:
            self._listener.close()
        raise GetTimeoutError


def coordinator(ray: SilentRay, listener: socket.socket) -> Coordinator:
    found = Coordinator.__new__(Coordinator)
    found._ray, found._joined = ray, Joined("{}:{}".format(*listener.getsockname()), None)
    found._head = SimpleNamespace(wait=SimpleNamespace(remote=lambda job: job))
    return found


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def test_a_ray_that_accepts_no_connection_any_more_is_reported(listener: socket.socket) -> None:
    ray = SilentRay(listener, ends_after=4)
    address = "{}:{}".format(*listener.getsockname())
    with pytest.raises(RunError, match=f"Ray at {address} has ended, and its jobs with it"):
        coordinator(ray, listener).wait(1)
    assert ray.looks == 6


def test_a_ray_that_is_there_is_waited_for(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = SilentRay(listener, ends_after=0)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: ray.now))
    with pytest.raises(RunError, match="job 1 is not over after"):
        coordinator(ray, listener).wait(1, timeout=30.0)
    assert ray.looks == 30.0 / client.LOOK_SECONDS > client.LOST_LOOKS


def test_a_coordinator_that_answers_no_question_is_an_error_of_one_line(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = SilentRay(listener, ends_after=0)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: ray.now))
    found = coordinator(ray, listener)
    found._head.status = SimpleNamespace(remote=lambda: None)
    with pytest.raises(RunError, match=r"the coordinator has not answered for 300 s \(is its machine"):
        found.status()
    assert ray.now == client.ANSWER_SECONDS


def test_a_look_that_took_longer_than_it_may_leaves_no_negative_limit(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    class SlowRay(SilentRay):
        def get(self, asked: object, timeout: float) -> None:
            limits.append(timeout)
            self.now += 0.01
            super().get(asked, timeout)

    ray = SlowRay(listener, ends_after=0)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: ray.now))
    with pytest.raises(RunError, match="job 1 is not over after"):
        coordinator(ray, listener).wait(1, timeout=client.LOOK_SECONDS + 0.005)
    # Ray aborts the process where the limit is negative.
    assert limits == [client.LOOK_SECONDS, 0.0]


@pytest.fixture
def started_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Joined:
    """A Ray that an earlier command has started on this machine, with a coordinator that answers at once."""
    found = Joined("127.0.0.1:6379", os.getpid())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    ray_connection.remember(found)
    monkeypatch.setattr(ray_connection, "HOST", psutil.Process().cmdline()[-1])
    monkeypatch.setattr(ray_connection, "join", lambda address: (MagicMock(), False))
    monkeypatch.setattr(client, "on_node", lambda node: None)
    monkeypatch.setattr(client, "_answer", lambda ray, asked: None)
    return found


@pytest.mark.parametrize("address", [None, "127.0.0.1:6379"])
def test_a_ray_that_was_started_here_can_be_stopped_after_a_start_by_its_address(
    started_here: Joined, address: str | None
) -> None:
    Coordinator.start(address)
    assert ray_connection.running() == started_here


def test_a_ray_that_was_started_here_is_not_forgotten_for_another_one(started_here: Joined) -> None:
    with pytest.raises(RunError, match=r"at 127.0.0.1:6379 would not be found again \(deeppool cluster stop ends it"):
        Coordinator.start("10.0.0.1:6379")
    assert ray_connection.running() == started_here


HOST = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(worker.pid, flush=True)
worker.wait()
"""


@pytest.mark.processes
def test_stopping_a_ray_that_has_ended_ends_what_is_left_of_it(tmp_path: Path, listener: socket.socket) -> None:
    address = "{}:{}".format(*listener.getsockname())
    listener.close()
    host = psutil.Popen([sys.executable, "-c", HOST, ray_connection.HOST], stdout=subprocess.PIPE)
    with host.stdout:
        worker = psutil.Process(int(host.stdout.readline()))
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    remember = (
        f"from deeppool.coordinator.ray_connection import Joined, remember; remember(Joined({address!r}, {host.pid}))"
    )
    subprocess.run([sys.executable, "-c", remember], env=environment, check=True)
    stored = tmp_path / "deeppool" / "cluster" / "ray.json"
    assert json.loads(stored.read_text())["pid"] == host.pid
    # The worker ends by no signal to the host: it is killed after the limit.
    stop = (
        "from deeppool.coordinator import ray_connection; ray_connection.STOP_SECONDS = 0.1; "
        "from deeppool.cli import main; main()"
    )
    command = [sys.executable, "-c", stop, "cluster", "stop"]
    stopped = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (stopped.returncode, stopped.stdout) == (1, "")
    assert stopped.stderr == (
        f"error: the Ray at {address} had ended, and its jobs with it; what was left of it was removed\n"
    )
    assert host.wait(300) != 0
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert not stored.exists()


@pytest.mark.processes
def test_a_process_of_a_stopped_ray_that_ends_by_itself_meanwhile_spares_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    host = psutil.Popen([sys.executable, "-c", HOST, ray_connection.HOST], stdout=subprocess.PIPE)
    with host.stdout:
        worker = psutil.Process(int(host.stdout.readline()))

    def wait_too_short(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
        # The host, which is killed first, ends just after this.
        assert processes == [host, worker]
        assert host.wait(300) != 0
        return processes

    monkeypatch.setattr(ray_connection, "wait_until_ended", wait_too_short)
    joined = Joined("127.0.0.1:1", host.pid)
    ray_connection.remember(joined)
    ray_connection.leave(joined)
    assert worker.wait(300) is None
    # Nor is it an error that all had ended before.
    ray_connection.leave(joined)
    assert list((tmp_path / "deeppool" / "cluster").iterdir()) == []

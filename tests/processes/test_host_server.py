"""What a host server of torchrun does with its folder, and with processes that the launcher does not end."""

import platform
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from deeppool.errors import RunError
from deeppool.processes.managed_process import ManagedProcess
from deeppool.processes.meeting_point import LOOPBACK
from deeppool.processes.torchrun import host_server
from deeppool.processes.torchrun.channel import Channel
from deeppool.processes.torchrun.host_server import HostServer

KEY = b"key"


def connected() -> tuple[Channel, Channel]:
    """The launcher's end of a connection, and the host server's."""
    with socket.create_server((LOOPBACK, 0)) as listener, ThreadPoolExecutor() as threads:
        there = socket.create_connection(listener.getsockname())
        accepted = threads.submit(Channel, listener.accept()[0], KEY, accepted=True)
        return Channel(there, KEY, accepted=False), accepted.result()


@contextmanager
def serving(folder: Path) -> Iterator[Channel]:
    """The launcher's end of a connection to a host server, which is released after the block."""
    launcher, channel = connected()
    with HostServer(channel, folder, same_clock=True) as server, ThreadPoolExecutor() as threads, closing(launcher):
        result = threads.submit(server.serve)
        # As torchrun's process would end: the test reads no message of it any more.
        result.add_done_callback(lambda _: channel.close())
        yield launcher
        launcher.send("end", succeeded=True)
        assert result.result()


def test_the_next_attempt_removes_what_loader_workers_left(tmp_path: Path) -> None:
    # multiprocessing puts the sockets of a loader's workers into a folder of their own.
    sockets = tmp_path / "pymp-abc123"
    sockets.mkdir()
    (sockets / "listener-x").touch()
    (tmp_path / "plan.json").write_text("{}")
    beyond = tmp_path.parent / f"{tmp_path.name}-kept"
    beyond.mkdir()
    (beyond / "file").touch()
    (tmp_path / "link").symlink_to(beyond)
    launcher, channel = connected()
    launcher.send("folder")
    launcher.send("end", succeeded=True)
    with HostServer(channel, tmp_path, same_clock=True) as server:
        assert server.serve()
    launcher.close()
    assert list(tmp_path.iterdir()) == []
    assert (beyond / "file").exists()


@pytest.mark.processes
def test_the_files_of_a_process_that_ended_by_itself_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ManagedProcess] = []

    def start(*of) -> ManagedProcess:
        started.append(ManagedProcess(*of))
        return started[-1]

    monkeypatch.setattr(host_server, "ManagedProcess", start)
    with serving(tmp_path) as launcher:
        launcher.send("start", process=3, module="deeppool.processes.no_module", name="rank 1")
        ended = next(iter(launcher))
        assert (ended["event"], ended["process"], ended["code"]) == ("ended", 3, 1)
        assert "No module named" in ended["exit_reason"]
        # What the launcher knew too late.
        launcher.send("command", process=3, command="exit", arguments={})
        launcher.send("cpu", process=3)
        assert next(iter(launcher)) == {"event": "cpu", "process": 3, "seconds": None}
        launcher.send("close", process=3, grace=0)
        (process,) = started
        assert process.process.stdin.closed
        assert process._errors.closed


def test_a_process_that_cannot_start_has_ended_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_) -> ManagedProcess:
        raise RunError("rank 1 cannot start: Too many open files (ulimit)")

    monkeypatch.setattr(host_server, "ManagedProcess", start)
    with serving(tmp_path) as launcher:
        launcher.send("start", process=0, module="some.module", name="rank 1")
        ended = next(iter(launcher))
    assert (ended["event"], ended["process"], ended["code"]) == ("ended", 0, 1)
    assert ended["exit_reason"] == f"cannot start on {platform.node()}: Too many open files (ulimit)"


def test_a_file_that_cannot_be_written_ends_the_server(tmp_path: Path) -> None:
    launcher, channel = connected()
    sent = tmp_path / "plan.json"
    sent.write_text("{}")
    launcher.send_file(sent)
    with (
        closing(launcher),
        HostServer(channel, tmp_path / "gone", same_clock=True) as server,
        pytest.raises(RunError, match=r"cannot keep the files of the run in .*gone: No such file or directory"),
    ):
        server.serve()

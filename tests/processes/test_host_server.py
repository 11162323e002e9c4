"""What a host server of torchrun does with its folder when the launcher starts an attempt again."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deeppool.processes.meeting_point import LOOPBACK
from deeppool.processes.torchrun.channel import Channel
from deeppool.processes.torchrun.host_server import HostServer

KEY = b"key"


def connected() -> tuple[Channel, Channel]:
    """The launcher's end of a connection, and the host server's."""
    with socket.create_server((LOOPBACK, 0)) as listener, ThreadPoolExecutor() as threads:
        there = socket.create_connection(listener.getsockname())
        accepted = threads.submit(Channel, listener.accept()[0], KEY, accepted=True)
        return Channel(there, KEY, accepted=False), accepted.result()


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

"""What a host server of torchrun does with its folder when the launcher starts an attempt again."""

import queue
from pathlib import Path
from typing import Any, cast

from deeppool.processes.torchrun.channel import Channel
from deeppool.processes.torchrun.host_server import HostServer


class Messages:
    """A launcher that sends some messages, and the end."""

    def __init__(self, *events: str) -> None:
        self._messages: list[dict[str, Any]] = [{"event": event} for event in events]
        self.sent: queue.SimpleQueue[str] = queue.SimpleQueue()

    def send(self, event: str, **content: object) -> None:
        self.sent.put(event)

    def __iter__(self) -> Any:
        yield from self._messages
        yield {"event": "end", "succeeded": True}


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
    with HostServer(cast(Channel, Messages("folder")), tmp_path, same_clock=True) as server:
        assert server.serve()
    assert list(tmp_path.iterdir()) == []
    assert (beyond / "file").exists()

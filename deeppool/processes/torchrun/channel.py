"""JSON lines, and files among them, over one TCP connection between a launcher and an agent."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from deeppool.processes.managed_process import Message

CHUNK = 2**20
LONGEST_FIRST_LINE = 4096
"""Bytes that are read of somebody who has not said yet who they are."""
# A machine that is switched off says no goodbye: after these seconds the kernel ends the connection.
IDLE_SECONDS, PROBE_SECONDS, PROBES = 3, 1, 3


class Channel:
    """Either end. What is sent to nobody is lost; that the other end is gone is learnt by reading."""

    def __init__(self, connection: socket.socket) -> None:
        """Takes the connection over."""
        self._socket = connection
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", IDLE_SECONDS),
            ("TCP_KEEPINTVL", PROBE_SECONDS),
            ("TCP_KEEPCNT", PROBES),
            ("TCP_USER_TIMEOUT", 1000 * (IDLE_SECONDS + PROBES * PROBE_SECONDS)),
        ):
            # Linux has all of them.
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._incoming = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, event: str, **content: object) -> None:
        """One line."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps({"event": event, **content}).encode() + b"\n")

    def send_file(self, path: Path) -> None:
        """A line that tells its name and size, and its bytes."""
        head = json.dumps({"event": "file", "name": path.name, "size": path.stat().st_size})
        with self._sending, contextlib.suppress(OSError), path.open("rb") as stream:
            self._socket.sendall(head.encode() + b"\n")
            self._socket.sendfile(stream)

    def receive_file(self, path: Path, size: int) -> None:
        """Writes the bytes that follow the line just read."""
        with path.open("wb") as stream:
            while size and (part := self._incoming.read(min(size, CHUNK))):
                stream.write(part)
                size -= len(part)

    def first(self, seconds: float) -> Message | None:
        """The first line, of somebody unknown; None if it is none of ours, or does not come in time."""
        self._socket.settimeout(seconds)
        try:
            line = self._incoming.readline(LONGEST_FIRST_LINE)
            message = json.loads(line)
        except (OSError, ValueError):
            return None
        self._socket.settimeout(None)
        return message if isinstance(message, dict) else None

    def __iter__(self) -> Iterator[Message]:
        """Lines until the other end is gone."""
        with contextlib.suppress(OSError):
            for line in self._incoming:
                # The last line of a killed process may be half of one.
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def close(self) -> None:
        """Ends the connection, for whoever reads it here too."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

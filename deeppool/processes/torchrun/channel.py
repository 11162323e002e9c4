"""Messages and files over one TCP connection between the launcher and a host server.

Both ends authenticate with :mod:`multiprocessing.connection`'s handshake and a key that they share (``authkey``). The
handshake does not encrypt: an observer of the network between the nodes can read the messages. They are JSON, sent with
``send_bytes`` and never with ``send``, which pickles.
"""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from deeppool.base import serialization
from deeppool.processes.managed_process import Message

CHUNK = 2**20
"""Bytes of a file per message."""
HANDSHAKE_SECONDS = 20.0
"""Time limit for the other end to authenticate."""
# A machine that is switched off closes no connection: the kernel closes it after these seconds.
IDLE_SECONDS, PROBE_SECONDS, PROBES = 3, 1, 3


class Channel:
    """One end of an authenticated connection. Messages to an end that is gone are lost; reading notices its end."""

    # Not Listener and Client: they have no timeout and no IPv6.
    def __init__(self, connection: socket.socket, authkey: bytes, *, accepted: bool) -> None:
        """Wraps a connection and authenticates.

        Args:
            connection: to the other end.
            authkey: that both ends have.
            accepted: whether this end accepted the connection; the other one made it.

        Raises:
            ConnectionError: the other end has another key, or does not answer in time.
        """
        self._socket = connection
        self._sending = threading.Lock()
        connection.settimeout(None)
        _keep_alive(connection)
        self._connection: Connection = Connection(os.dup(connection.fileno()))
        timer = threading.Timer(HANDSHAKE_SECONDS, self._shut_down)
        timer.daemon = True
        timer.start()
        steps = (deliver_challenge, answer_challenge)
        try:
            for step in steps if accepted else reversed(steps):
                step(self._connection, authkey)
        except (AuthenticationError, EOFError, OSError) as error:
            self.close()
            raise ConnectionError("the other end could not be authenticated") from error
        finally:
            timer.cancel()

    def send(self, event: str, **content: object) -> None:
        """Sends one message."""
        with self._sending, contextlib.suppress(OSError):
            # Arguments of a command may hold numbers of NumPy.
            line = json.dumps({"event": event, **content}, default=serialization.plain)
            self._connection.send_bytes(line.encode())

    def send_file(self, path: Path) -> None:
        """Sends a message with the name and size of a file, then its bytes."""
        size = path.stat().st_size
        head = json.dumps({"event": "file", "name": path.name, "size": size})
        with self._sending, contextlib.suppress(OSError), path.open("rb") as stream:
            self._connection.send_bytes(head.encode())
            while part := stream.read(CHUNK):
                self._connection.send_bytes(part)

    def receive_file(self, path: Path, size: int) -> None:
        """Writes the bytes that follow the message just read."""
        with path.open("wb") as stream:
            while size and (part := self._receive()):
                stream.write(part)
                size -= len(part)

    def __iter__(self) -> Iterator[Message]:
        """Yields messages until the other end is gone."""
        while message := self._receive():
            yield json.loads(message)

    def _receive(self) -> bytes:
        """Returns the next message, or an empty one once the other end is gone, also within a message."""
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            return b""

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection, also for a thread that reads it."""
        self._shut_down()
        self._socket.close()
        self._connection.close()


def _keep_alive(connection: socket.socket) -> None:
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

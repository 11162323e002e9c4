"""TCP connections of one rank to all others.

Ranks authenticate each other with a secret that they share (the standard library's challenge and response).
"""

import socket
import struct
import time
from collections.abc import Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from deeppool.errors import RunError
from deeppool.execution.transports.received import TIMEOUT

Address = tuple[str, int]

_HANDSHAKE = 5.0
"""Seconds for which a rank waits for whoever has connected to it: a stranger may be silent."""
_SHORTEST = 0.01
"""Seconds of the shortest wait: 0 would be none, or for ever."""


class Peers:
    """Connections of one rank to all others."""

    def __init__(self, rank: int, host: str, secret: bytes, timeout: float = TIMEOUT) -> None:
        """Listens on a port that the system chooses.

        Args:
            rank: of this process or thread.
            host: name or address under which the others reach this rank.
            secret: shared by all ranks.
            timeout: seconds to wait for the others.
        """
        self._rank, self._secret, self._timeout = rank, secret, timeout
        self._server = socket.create_server((host, 0), backlog=128)
        self.address: Address = self._server.getsockname()[:2]

    def connect(self, addresses: Sequence[Address]) -> dict[int, socket.socket]:
        """Connects to all ranks; every rank calls it with the addresses of all.

        Raises:
            RunError: a rank did not connect in time.
        """
        found: dict[int, Connection] = {}
        end = time.monotonic() + self._timeout
        try:
            with self._server:
                for other in range(self._rank):
                    found[other] = self._reach(other, addresses[other], end)
                while missing := sorted({*range(len(addresses))} - {*found, self._rank}):
                    try:
                        self._server.settimeout(max(_SHORTEST, end - time.monotonic()))
                        found |= self._accept(end)
                    except TimeoutError:
                        raise RunError(f"ranks {missing} did not connect to rank {self._rank} in time") from None
            return {other: _socket_of(connection) for other, connection in found.items()}
        except BaseException:
            for connection in found.values():
                connection.close()
            raise

    def _reach(self, other: int, address: Address, end: float) -> Connection:
        """Connects to a rank that accepts this one."""
        connection = None
        try:
            made = socket.create_connection(address, max(_SHORTEST, end - time.monotonic()))
            connection = _connection(made, end - time.monotonic())
            answer_challenge(connection, self._secret)
            deliver_challenge(connection, self._secret)
            connection.send_bytes(self._rank.to_bytes(4))
        except (AuthenticationError, EOFError, OSError) as error:
            if connection is not None:
                connection.close()
            raise RunError(
                f"rank {self._rank} cannot connect to rank {other} at {address[0]}:{address[1]}: "
                f"{error or type(error).__name__} (see that rank's own error)"
            ) from error
        return connection

    def _accept(self, end: float) -> dict[int, Connection]:
        """Returns the next connection, by its rank; none if it does not know the secret, or is silent."""
        connection = _connection(self._server.accept()[0], min(_HANDSHAKE, end - time.monotonic()))
        try:
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            return {int.from_bytes(connection.recv_bytes(4)): connection}
        except (AuthenticationError, EOFError, OSError):
            connection.close()
            return {}


def _connection(made: socket.socket, seconds: float) -> Connection:
    """Returns a connection that raises an error when nothing comes for some seconds."""
    made.setblocking(True)
    limit = max(_SHORTEST, seconds)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(limit), int(limit % 1 * 1e6)))
    return Connection(made.detach())


def _socket_of(connection: Connection) -> socket.socket:
    made = socket.socket(fileno=socket.dup(connection.fileno()))
    connection.close()
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setblocking(False)
    return made

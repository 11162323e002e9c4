"""The choice of the engine that delivers messages over TCP: native where it can be had, else Python."""

import socket
from typing import Literal

from deeppool.collectives.partial.state import RoundSpec
from deeppool.errors import RunError
from deeppool.execution.transports.native.build import load_engine
from deeppool.execution.transports.native.native_tcp import NativeTcpRounds
from deeppool.execution.transports.received import TIMEOUT
from deeppool.execution.transports.tcp import TcpRounds

TcpEngine = Literal["auto", "native", "python"]


def tcp_rounds(
    rank: int,
    peers: dict[int, socket.socket],
    spec: RoundSpec,
    *,
    timeout: float = TIMEOUT,
    engine: TcpEngine = "auto",
) -> TcpRounds | NativeTcpRounds:
    """Makes one rank's side of partial all-reduces over TCP; ranks with either engine understand each other.

    Args:
        rank: of this process or thread.
        peers: connections to all others.
        spec: the same on all ranks.
        timeout: seconds to wait for other ranks.
        engine: ``auto`` is the native one where it can be had.

    Raises:
        RunError: the native engine was asked for and cannot be had.
    """
    native = None if engine == "python" else load_engine()
    if native is not None:
        return NativeTcpRounds(native, rank, peers, spec, timeout=timeout)
    if engine == "native":
        raise RunError("the native engine cannot be had here (the log says why; engine='auto' falls back to Python)")
    return TcpRounds(rank, peers, spec, timeout=timeout)

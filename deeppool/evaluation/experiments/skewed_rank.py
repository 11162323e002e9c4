"""Process of a rank that :func:`skewed_calls` starts: linearly skewed calls of partial all-reduces.

Commands: ``setup`` (once), ``exit``. Answers: ``done`` with the latency of each call.
"""

import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from deeppool.collectives.partial.firing import FiringRule
from deeppool.collectives.partial.state import RoundSpec
from deeppool.errors import DeeppoolError
from deeppool.execution.partial_all_reduce import PartialRounds
from deeppool.execution.transports.shared_memory import SharedMemoryRounds
from deeppool.execution.transports.tcp_engine import TcpEngine, tcp_rounds
from deeppool.execution.transports.tcp_peers import Peers
from deeppool.processes.heartbeat import Heartbeat
from deeppool.processes.managed_process import CommandChannel, Message

LEAD = 0.02
"""Seconds between the meeting of all ranks and the first call."""
ENGINES: dict[str, TcpEngine] = {"tcp-native": "native", "tcp-python": "python"}


def connect(folder: Path, rank: int, secret: bytes, meeting: SharedMemoryRounds) -> dict[int, socket.socket]:
    """Connects to all ranks; ports are exchanged through the ranks' meeting."""
    peers = Peers(rank, "127.0.0.1", secret)
    (folder / f"port-{rank}").write_text(str(peers.address[1]), encoding="ascii")
    meeting.all_reduce(np.zeros(1))
    ports = [int((folder / f"port-{other}").read_text(encoding="ascii")) for other in range(meeting.rule.ranks)]
    return peers.connect([("127.0.0.1", port) for port in ports])


def measure(setup: Message) -> dict[str, Any]:
    """Returns the latency of each call, and whether the round took this rank's gradient."""
    folder, rank, ranks, transport = Path(setup["folder"]), setup["rank"], setup["ranks"], setup["transport"]
    meeting = SharedMemoryRounds(folder / "meeting", rank, RoundSpec(FiringRule(ranks, "full"), 1, "float64"))
    elements = setup["elements"]
    spec = RoundSpec(FiringRule(ranks, setup["mode"], staleness_limit=None), elements)
    rounds: PartialRounds
    if transport in ENGINES:
        peers = connect(folder, rank, bytes.fromhex(setup["secret"]), meeting)
        rounds = tcp_rounds(rank, peers, spec, engine=ENGINES[transport])
    else:
        rounds = SharedMemoryRounds(folder / "measured", rank, spec)
    gradient = np.ones(elements, np.float32)
    latencies, accepted = [], []
    for _ in range(setup["iterations"]):
        meeting.all_reduce(np.zeros(1))
        # All ranks learn one instant, so that waking up one after the other is no part of the skew.
        start = meeting.all_reduce(np.full(1, time.monotonic() + LEAD if rank == 0 else 0.0)).results[-1].total[0]
        time.sleep(max(0.0, start + (rank + 1) * setup["skew"] - time.monotonic()))
        began = time.perf_counter()
        received = rounds.all_reduce(gradient)
        latencies.append(time.perf_counter() - began)
        accepted.append(received.accepted)
    for _ in rounds.drain():
        pass
    rounds.close()
    return {"latencies": latencies, "accepted": accepted}


def main() -> None:
    """Serves one measurement."""
    commands = CommandChannel()
    heartbeat = Heartbeat(commands)
    try:
        setup = commands.next()
        heartbeat.enter("calling partial all-reduces")
        commands.answer("done", **measure(setup))
        commands.next()
    except DeeppoolError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

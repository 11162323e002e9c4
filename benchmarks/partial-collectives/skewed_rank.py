"""One rank of the micro-benchmark: linearly skewed calls of partial all-reduces (Li et al., 2020, figure 8)."""

import json
import socket
import sys
import time
from pathlib import Path

import numpy as np

from deeppool.collectives.partial.firing import FiringRule
from deeppool.execution.transports.shared_memory import SharedMemoryRounds
from deeppool.execution.transports.tcp_engine import tcp_rounds
from deeppool.execution.transports.tcp_peers import Peers

SECRET = b"of one benchmark"
LEAD = 0.02
"""Seconds between the meeting of all ranks and the first call."""


def connect(folder: Path, rank: int, meeting: SharedMemoryRounds) -> dict[int, socket.socket]:
    """Connects to all ranks; ports are exchanged through the ranks' meeting."""
    peers = Peers(rank, "127.0.0.1", SECRET)
    (folder / f"port-{rank}").write_text(str(peers.address[1]))
    meeting.all_reduce(np.zeros(1))
    ports = [int((folder / f"port-{other}").read_text()) for other in range(meeting.rule.ranks)]
    return peers.connect([("127.0.0.1", port) for port in ports])


def main(
    folder: Path, rank: int, transport: str, ranks: int, mode: str, elements: int, iterations: int, step: float
) -> None:
    """Prints the latency of each call, and whether the round took this rank's gradient."""
    meeting = SharedMemoryRounds(folder / "meeting", rank, FiringRule(ranks, "full"), 1, "float64")
    rule, rounds = FiringRule(ranks, mode, staleness_limit=None), None
    if transport.startswith("tcp"):
        engine = transport.removeprefix("tcp-")
        rounds = tcp_rounds(rank, connect(folder, rank, meeting), rule, elements, engine=engine)
    else:
        rounds = SharedMemoryRounds(folder / "measured", rank, rule, elements)
    gradient = np.ones(elements, np.float32)
    latencies, accepted = [], []
    for _ in range(iterations):
        meeting.all_reduce(np.zeros(1))
        # All ranks learn one instant, so that waking up one after the other is no part of the skew.
        start = meeting.all_reduce(np.full(1, time.monotonic() + LEAD if rank == 0 else 0.0)).results[-1].total[0]
        time.sleep(max(0.0, start + (rank + 1) * step - time.monotonic()))
        began = time.perf_counter()
        received = rounds.all_reduce(gradient)
        latencies.append(time.perf_counter() - began)
        accepted.append(received.accepted)
    for _ in rounds.drain():
        pass
    rounds.close()
    print(json.dumps({"latencies": latencies, "accepted": accepted}))


if __name__ == "__main__":
    folder, rank, transport, ranks, mode, elements, iterations, step = sys.argv[1:]
    main(Path(folder), int(rank), transport, int(ranks), mode, int(elements), int(iterations), float(step))

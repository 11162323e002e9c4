"""Ranks of which the first kills or stops itself during the rounds: folder, transport, mode, signal, timeout.

One process forks the ranks, which is what a machine with few cores can afford. Each of the others writes what ended it.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from deeppool.collectives.partial.firing import FiringRule
from deeppool.collectives.partial.state import RoundSpec
from deeppool.errors import RunError
from deeppool.execution.transports.shared_memory import SharedMemoryRounds, create
from deeppool.execution.transports.tcp_engine import tcp_rounds
from deeppool.execution.transports.tcp_peers import Peers

RANKS = 3


def join(folder: Path, rank: int, transport: str, rule: FiringRule, timeout: float):
    if transport == "shared-memory":
        return SharedMemoryRounds(folder / "state", rank, RoundSpec(rule, 4), timeout=timeout)
    peers = Peers(rank, "127.0.0.1", b"of one test")
    name = folder / f"port-{rank}"
    name.with_suffix(".new").write_text(str(peers.address[1]))
    name.with_suffix(".new").rename(name)
    while len(ports := sorted(folder.glob("port-?"))) < RANKS:
        time.sleep(0.01)
    connected = peers.connect([("127.0.0.1", int(port.read_text())) for port in ports])
    return tcp_rounds(rank, connected, RoundSpec(rule, 4), timeout=timeout, engine=transport.removeprefix("tcp-"))


def main(folder: Path, rank: int, transport: str, mode: str, lost: int, timeout: float) -> None:
    rule = FiringRule(RANKS, mode, staleness_limit=3)
    rounds = join(folder, rank, transport, rule, timeout)
    began = time.monotonic()
    try:
        for step in range(10_000):
            if (rank, step) == (0, 5):
                os.kill(os.getpid(), lost)
            rounds.all_reduce(np.ones(4, np.float32))
            began = time.monotonic()
    except RunError as error:
        found = {"kind": type(error).__name__, "text": str(error), "seconds": time.monotonic() - began}
        (folder / f"rank-{rank}.json").write_text(json.dumps(found))
        rounds.close()


if __name__ == "__main__":
    folder, transport, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if transport == "shared-memory":
        create(folder / "state", RoundSpec(FiringRule(RANKS, mode, staleness_limit=3), 4))
    children = []
    for rank in range(RANKS):
        if not (child := os.fork()):
            main(folder, rank, transport, mode, int(sys.argv[4]), float(sys.argv[5]))
            os._exit(0)
        children.append(child)
    for child in children[1:]:
        os.waitpid(child, 0)
    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)

"""One rank in a process of its own: path, rank, ranks."""

import sys
from pathlib import Path

import numpy as np

from deeppool.collectives.partial.firing import FiringRule
from deeppool.collectives.partial.state import RoundSpec
from deeppool.execution.transports.shared_memory import SharedMemoryRounds

path, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rounds = SharedMemoryRounds(path, rank, RoundSpec(FiringRule(ranks, "full"), 4, delivery="log"))
for step in range(3):
    received = rounds.all_reduce(np.full(4, (step + 1) * (rank + 1), np.float32))
    print(received.results[0].total[0])
assert not list(rounds.drain())

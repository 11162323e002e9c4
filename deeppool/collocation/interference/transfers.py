"""Measures the work of a background at the lowest priority inside transfers, while their ranks wait for data.

Two ranks all-reduce, each with a ResNet-18 in training on its core. Their waits are short, but a background loses less
in them than in waits of a training, presumably because transfers leave it more of the caches.
"""

import contextlib
from collections.abc import Callable

import numpy as np

from deeppool.collocation.interference.cpu_bench import START_SECONDS, run, running
from deeppool.collocation.interference.waits import start_background
from deeppool.device.cpu import usable_cores
from deeppool.processes.managed_process import ManagedProcess, receive
from deeppool.processes.rank_group import private_folder

RANKS = 2
BYTES = 2**24
"""Bytes of an all-reduce; a background got 88 % of a quarter of a megabyte, 76 of 256 (``benchmarks/interference``)."""


def measure_transfers(seconds: float, rounds: int, report: Callable[[float], None]) -> float:
    """Measures backgrounds alone, then beside ranks, several times; needs a core for each rank.

    Args:
        seconds: duration for which the backgrounds train beside the ranks in each round, and half as long alone.
        rounds: number of rounds, whose median counts.
        report: called with the share that is done.

    Returns:
        Steps that the backgrounds did in the time in which the ranks used no CPU, as a part of those that they do in as
        much time alone; at most 1.

    Raises:
        RunError: a process died.
    """
    found = []
    with contextlib.ExitStack() as ending:
        ranks = _start_ranks(ending)
        backgrounds = [start_background(ending, core) for core in usable_cores()[:RANKS]]
        for number in range(rounds):
            alone = run(backgrounds, 0, seconds / 2)
            with running(ranks, 0) as moving:
                beside = run(backgrounds, 0, seconds)
            rates = [[done["count"] / done["seconds"] for done in both] for both in (beside, alone)]
            idle = sum(1 - done["cpu"] / done["seconds"] for done in moving)
            found.append(sum(one / other for one, other in zip(*rates, strict=True)) / idle)
            report((number + 1) / rounds)
    return float(min(1.0, np.median(found)))


def _start_ranks(ending: contextlib.ExitStack) -> list[ManagedProcess]:
    folder = ending.enter_context(private_folder())
    ranks = [
        ending.enter_context(ManagedProcess("deeppool.collocation.interference.all_reduce_worker", f"rank {rank}"))
        for rank in range(RANKS)
    ]
    for rank, child in enumerate(ranks):
        child.send("setup", rank=rank, ranks=RANKS, rendezvous=str(folder / "rendezvous"), bytes=BYTES)
    for child in ranks:
        receive(child, START_SECONDS)
    return ranks

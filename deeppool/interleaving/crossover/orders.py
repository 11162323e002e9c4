"""Orders in which a rank can train several jobs: crossed over, and what that is compared with.

crossover            one job computes while the gradients of the others are in flight
one after the other  each job waits for its own gradients, then computes the next step; one job after the other
data parallel        torch's DistributedDataParallel, one job after the other: transfers beside each one's backward
ranks of their own   the same on fewer ranks, at the same time: each group of ranks trains its own jobs
shifted              jobs at the same time, each in a thread, that start as far apart as each computes, so that the
                     transfers of one begin when another computes; nothing keeps them apart later (the idea of
                     Rajasekaran et al., "CASSINI", NSDI 2024)
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from deeppool.interleaving.crossover.job_on_rank import JobOnRank, take_turn
from deeppool.interleaving.crossover.measurements import round_times
from deeppool.interleaving.crossover.order import turns


def cross_over(jobs: Mapping[str, JobOnRank], rounds: int) -> dict[str, Any]:
    """Trains full rounds crossed over; returns their seconds, and all turns."""
    # The first round settles nothing, and a round ends with the first turn of the next.
    taken = [
        take_turn(jobs[turn.job], settles=turn.settles, computes=turn.computes) | {"round": turn.round}
        for turn in turns(dict.fromkeys(jobs, rounds + 1))
    ]
    return {"seconds": round_times([{"turns": taken}], len(jobs)), "turns": taken}


def one_after_the_other(jobs: Mapping[str, JobOnRank], rounds: int) -> dict[str, Any]:
    """Trains each job alone without any overlap; returns the seconds of a step of each, and all turns."""
    each, taken = [], []
    for job in jobs.values():
        own = []
        for _ in range(rounds):
            started = time.perf_counter()
            taken += [take_turn(job, settles=False, computes=True), take_turn(job, settles=True, computes=False)]
            own.append(time.perf_counter() - started)
        each.append(own)
    return {"seconds": [sum(times) for times in zip(*each, strict=True)], "turns": taken}


def data_parallel(steps: Sequence[Callable[[], None]], rounds: int) -> dict[str, Any]:
    """Trains each job of this rank by DistributedDataParallel, one by one; returns the seconds of a step of each."""
    each = [[_seconds(step) for _ in range(rounds)] for step in steps] or [[0.0] * rounds]
    return {"seconds": [sum(times) for times in zip(*each, strict=True)]}


def shifted(jobs: Sequence[JobOnRank], rounds: int, shifts: Sequence[float]) -> dict[str, Any]:
    """Trains the jobs at the same time, from starts some seconds apart; returns the seconds of a step of each."""
    threads = torch.get_num_threads()

    def train(job: JobOnRank, shift: float) -> list[float]:
        # A new thread has its own number of threads.
        torch.set_num_threads(threads)
        time.sleep(shift)
        return [_seconds(lambda: (job.compute(), job.settle())) for _ in range(rounds)]

    with ThreadPoolExecutor(len(jobs)) as pool:
        each = list(pool.map(train, jobs, shifts))
    return {"seconds": [max(times) for times in zip(*each, strict=True)]}


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started

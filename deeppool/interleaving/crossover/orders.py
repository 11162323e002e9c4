"""Orders in which a rank can train several jobs: crossed over, and what that is compared with.

crossover            one job computes while the gradients of the others are in flight
one after the other  each job waits for its own gradients, then computes the next step; one job after the other
data parallel        torch's DistributedDataParallel, one job after the other: transfers beside each one's backward
shifted              jobs at the same time, each in a thread, that start as far apart as each computes, so that the
                     transfers of one begin when another computes; nothing keeps them apart later (the idea of
                     Rajasekaran et al., "CASSINI", NSDI 2024)
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from deeppool.graph.capture.losses import classification_loss
from deeppool.interleaving.crossover.job_on_rank import JobOnRank, take_turn
from deeppool.interleaving.crossover.measurements import round_times
from deeppool.interleaving.crossover.order import turns
from deeppool.training.training_job import TrainingJob


class DataParallelJob:
    """One job on one rank by DistributedDataParallel."""

    def __init__(
        self,
        job: TrainingJob,
        model: torch.nn.Module,
        batch: Callable[[int], tuple[torch.Tensor, ...]],
        bucket_megabytes: float,
    ) -> None:
        """Wraps a model; every rank calls it.

        Args:
            job: its loss and optimizer.
            model: its model, which is trained.
            batch: returns this rank's samples of a step.
            bucket_megabytes: size of its buckets.
        """
        self._model = DistributedDataParallel(model, bucket_cap_mb=bucket_megabytes)
        self._loss = job.loss or classification_loss
        trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        self._optimizer = job.optimizer(trained)
        self._batch, self._step = batch, 0

    def step(self) -> None:
        """Makes one update."""
        *inputs, target = self._batch(self._step)
        self._loss(self._model(*inputs), target).backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._step += 1


def cross_over(jobs: Mapping[str, JobOnRank], rounds: int) -> tuple[list[float], list[dict[str, Any]]]:
    """Trains full rounds crossed over; returns their durations, and all turns."""
    # The first round settles nothing, and a round ends with the first turn of the next.
    taken = [
        take_turn(jobs[turn.job], settles=turn.settles, computes=turn.computes) | {"round": turn.round}
        for turn in turns(dict.fromkeys(jobs, rounds + 1))
    ]
    return round_times([{"turns": taken}], len(jobs)), taken


def one_after_the_other(jobs: Mapping[str, JobOnRank], rounds: int) -> tuple[list[float], list[dict[str, Any]]]:
    """Trains each job alone without any overlap; returns the time of one step of each, and all turns."""
    each, taken = [], []
    for job in jobs.values():
        own = []
        for _ in range(rounds):
            started = time.perf_counter()
            taken += [take_turn(job, settles=False, computes=True), take_turn(job, settles=True, computes=False)]
            own.append(time.perf_counter() - started)
        each.append(own)
    return [sum(times) for times in zip(*each, strict=True)], taken


def data_parallel(jobs: Sequence[DataParallelJob], rounds: int) -> list[float]:
    """Trains each job alone by DistributedDataParallel; returns the time of one step of each."""
    each = [[_seconds(job.step) for _ in range(rounds)] for job in jobs]
    return [sum(times) for times in zip(*each, strict=True)]


def shifted(jobs: Sequence[JobOnRank], rounds: int, shifts: Sequence[float]) -> list[float]:
    """Trains the jobs at the same time, from starts some seconds apart; returns the time of one step of each."""
    threads = torch.get_num_threads()

    def train(job: JobOnRank, shift: float) -> list[float]:
        # A new thread has its own number of threads.
        torch.set_num_threads(threads)
        time.sleep(shift)
        return [_seconds(lambda: (job.compute(), job.settle())) for _ in range(rounds)]

    with ThreadPoolExecutor(len(jobs)) as pool:
        each = list(pool.map(train, jobs, shifts))
    return [max(times) for times in zip(*each, strict=True)]


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started

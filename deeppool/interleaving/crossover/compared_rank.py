"""A rank that trains the same jobs in several orders by turns, and the entry point of its process.

Command: ``compare`` with rounds of each order. Each order has weights of its own, as only times are compared.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from deeppool.collectives.layout import Layout
from deeppool.execution.rank import Command
from deeppool.execution.training_task import TrainingTask, user_task
from deeppool.execution.worker import serve
from deeppool.interleaving.crossover.comparison_record import CROSSOVER, DATA_PARALLEL, SEQUENTIAL, SHIFTED
from deeppool.interleaving.crossover.job_on_rank import JobOnRank, RandomNumbers
from deeppool.interleaving.crossover.orders import (
    DataParallelJob,
    cross_over,
    data_parallel,
    one_after_the_other,
    shifted,
)
from deeppool.interleaving.crossover.rank import CrossoverRank
from deeppool.interleaving.crossover.transfer_queue import TransferQueue
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.training.training_job import TrainingJob, load_job


class ComparedRank:
    """The orders of one rank."""

    def __init__(self, rank: CrossoverRank) -> None:
        """Takes the rank, whose jobs are made."""
        self._rank = rank
        self._data_parallel: list[DataParallelJob] = []
        self._shifted: list[JobOnRank] = []

    @property
    def commands(self) -> Mapping[str, Command]:
        """All commands by name."""
        return {
            "prepare": Command("making the same jobs for other orders", self.prepare),
            "compare": Command("training in several orders", self.compare),
        }

    def prepare(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Makes what the given orders need."""
        for name, batch in message["jobs"].items():
            if DATA_PARALLEL in message["orders"]:
                job, task = self._load(name, batch)
                self._data_parallel.append(self._wrap(job, task, batch, message["bucket_megabytes"]))
            if SHIFTED in message["orders"]:
                job, task = self._load(name, batch)
                # Each thread needs groups of its own.
                queue = TransferQueue(self._rank.device)
                self._shifted.append(self._rank.make_trainer(name, task, batch, queue, RandomNumbers(job.seed)))
        return {}

    def compare(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Trains some rounds in each order; returns the seconds of every round, and the turns of two of them."""
        rounds, jobs = message["rounds"], self._rank.jobs
        seconds: dict[str, list[float]] = {}
        crossed: list[dict[str, Any]] = []
        alone: list[dict[str, Any]] = []
        for order in message["orders"]:
            dist.barrier()
            if order == CROSSOVER:
                seconds[order], crossed = cross_over(jobs, rounds)
            elif order == SEQUENTIAL:
                seconds[order], alone = one_after_the_other(jobs, rounds)
            elif order == DATA_PARALLEL:
                seconds[order] = data_parallel(self._data_parallel, rounds)
            else:
                seconds[order] = shifted(self._shifted, rounds, message["shifts"])
        return {"seconds": seconds, "turns": crossed, "alone": alone}

    def _load(self, name: str, batch: int) -> tuple[TrainingJob, TrainingTask]:
        job = load_job(self._rank.folder / name)
        with RandomNumbers(job.seed).current():
            return job, user_task(job, batch, self._rank.place)

    def _wrap(self, job: TrainingJob, task: TrainingTask, batch: int, bucket_megabytes: float) -> DataParallelJob:
        ranks = self._rank.communicator.ranks
        shard = Layout(tuple(range(ranks)), batch).shard(self._rank.communicator.rank)

        def samples(step: int) -> tuple[torch.Tensor, ...]:
            return tuple(tensor.to(self._rank.place) for tensor in task.samples(step, shard))

        with self._rank.device.unbound():
            return DataParallelJob(job, task.captured.source, samples, bucket_megabytes)


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    serve(CrossoverRank, lambda rank: ComparedRank(rank).commands)


if __name__ == "__main__":
    main()

"""A rank that trains the same job by several methods of sending gradients, and the entry point of its process.

Its command ``transfers`` performs the transfers of a method while nothing computes.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster
from deeppool.collectives.layout import Layout
from deeppool.device.protocol import Device
from deeppool.execution.comparison.ways import Way, Ways
from deeppool.execution.data_parallel.compared_methods import Trainee, make_trainee
from deeppool.execution.joined_rank import JoinedRank
from deeppool.execution.rank import Command
from deeppool.execution.worker import serve
from deeppool.graph.models.workloads import load_model
from deeppool.processes.heartbeat import Heartbeat
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.training.data import ShardReader
from deeppool.training.training_job import load_job


class ComparedReplica(JoinedRank):
    """One rank of compared methods."""

    def __init__(self, setup: Message, heartbeat: Heartbeat) -> None:
        """Joins the other ranks, and makes the samples."""
        super().__init__(setup, heartbeat)
        job = load_job(self.folder)
        self._reader = ShardReader(job.dataset(), setup["batch"], job.seed, job.loader_workers, job.sampler)
        self._batch, self._iteration = setup["batch"], 0
        self._ways = Ways(self._make)

    @property
    def commands(self) -> Mapping[str, Command]:
        """All commands by name."""
        return {
            **super().commands,
            "transfers": Command("performing transfers alone", self.transfers),
            **self._ways.commands,
        }

    def transfers(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Performs a method's transfers while nothing computes; returns their seconds, and those that cores compute."""
        trainee = self._ways[message["way"]].trainee
        seconds, computing = [], []
        for _ in range(message["repetitions"]):
            dist.barrier()
            began, core_began = time.perf_counter(), time.process_time()
            trainee.transfer()
            seconds.append(time.perf_counter() - began)
            computing.append(time.process_time() - core_began)
        return {"seconds": statistics.median(seconds), "computing": statistics.median(computing)}

    def _make(self, message: Message) -> tuple["_TimedTrainee", dict[str, Any]]:
        """Makes a method, and trains until its plan is made."""
        cluster = serialization.from_json(message["cluster"], Cluster, "the measured network")
        job = load_job(self.folder)
        model = load_model(job.model, job.seed) if isinstance(job.model, str) else job.model
        place = range(message["count"])
        trainee = make_trainee(message["way"], job, model.to(self.place), cluster, message["bucket"], place)
        samples = partial(self._samples, Layout(tuple(place), self._batch).shard(self.rank))
        for _ in range(message["warm_up"]):
            trainee.step(*samples())
        while trainee.trying:
            trainee.step(*samples())
        trainee.drain()
        transfers = trainee.transfers and serialization.to_json(trainee.transfers)
        return _TimedTrainee(trainee, samples, self.device), {"transfers": transfers}

    def _samples(self, shard: range) -> tuple[torch.Tensor, ...]:
        found = self._reader.shard(self._iteration, shard) if shard else ()
        self._iteration += 1
        return tuple(tensor.to(self.place) for tensor in found)


class _TimedTrainee(Way):
    """A training by one method, timed from step to step."""

    def __init__(self, trainee: Trainee, samples: Callable[[], tuple[torch.Tensor, ...]], device: Device) -> None:
        self.trainee, self._samples, self._device = trainee, samples, device

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        # The first iteration finds no transfers under way, so it counts for nothing.
        batches = [self._samples() for _ in range(message["rounds"] + 1)]
        ends = []
        for batch in batches:
            self.trainee.step(*batch)
            self._device.synchronize_stream()
            ends.append(time.perf_counter())
        timeline = self.trainee.timeline
        self.trainee.drain()
        seconds = [end - start for start, end in itertools.pairwise(ends)]
        return {"seconds": seconds, "timeline": timeline and serialization.to_json(timeline)}

    def close(self) -> None:
        self.trainee.close()


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    serve(ComparedReplica)


if __name__ == "__main__":
    main()

"""A rank that trains the same job by several methods of sending gradients, and the entry point of its process.

Commands: ``network`` measures it, ``prepare`` makes the methods, ``train`` one of them for some iterations, and
``transfers`` performs its transfers while nothing computes. Each method has weights of its own, as only times are
compared.
"""

import itertools
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster
from deeppool.collectives.layout import Layout
from deeppool.device.cpu import pin_to_core
from deeppool.device.find import find_device
from deeppool.execution.communicator import join_process_group
from deeppool.execution.data_parallel.compared_methods import Trainee, make_trainee
from deeppool.execution.failure_report import RENDEZVOUS
from deeppool.execution.rank import Command
from deeppool.execution.worker import serve
from deeppool.graph.models.workloads import load_model
from deeppool.processes.heartbeat import Heartbeat
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.profiling.network.measure import measure_joined
from deeppool.profiling.network.patterns import RankContext
from deeppool.training.data import ShardReader
from deeppool.training.training_job import load_job


class ComparedReplica:
    """One rank of compared methods."""

    def __init__(self, setup: Message, heartbeat: Heartbeat) -> None:
        """Pins the process, joins the other ranks, and makes the samples."""
        heartbeat.enter("its start")
        device = self.device = find_device(setup["device"])
        device.select(setup["index"])
        self.stream = device.stream("high")
        if setup["core"] is not None:
            pin_to_core(setup["core"])
        self._place = device.torch_device(setup["index"])
        heartbeat.enter(RENDEZVOUS, waits=True)
        rank, ranks = setup["rank"], setup["ranks"]
        self.communicator = join_process_group(device, rank, ranks, setup["rendezvous"], setup["interface"])
        self._context = RankContext(rank, ranks, setup["per_node"])
        self._job = load_job(Path(setup["folder"]))
        job = self._job
        self._reader = ShardReader(job.dataset(), setup["batch"], job.seed, job.loader_workers, job.sampler)
        self._shard = Layout(tuple(range(ranks)), setup["batch"]).shard(rank)
        self._iteration = 0
        self._trainees: dict[str, Trainee] = {}

    @property
    def ready(self) -> dict[str, Any]:
        """What the launcher wants to know."""
        return {"device_name": self.device.name}

    @property
    def commands(self) -> Mapping[str, Command]:
        """All commands by name."""
        return {
            "network": Command("measuring the network", self.network),
            "prepare": Command("making a method", self.prepare),
            "train": Command("training by a method", self.train),
            "transfers": Command("performing transfers alone", self.transfers),
        }

    def network(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Measures the network between the ranks; rank 0 returns it."""
        cluster = measure_joined(
            self._context, self.device, message["sizes"], seconds=message["seconds"], schedules=True
        )
        return {"cluster": cluster and serialization.to_json(cluster)}

    def prepare(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Makes a method, in place of an earlier one of the same name, and trains until its plan is made."""
        name = message["method"]
        if name in self._trainees:
            self._trainees.pop(name).close()
        cluster = serialization.from_json(message["cluster"], Cluster, "the measured network")
        job = load_job(Path(message["folder"]))
        model = load_model(job.model, job.seed) if isinstance(job.model, str) else job.model
        trainee = make_trainee(name, job, model.to(self._place), cluster, message["bucket"])
        self._trainees[name] = trainee
        for _ in range(message["warm_up"]):
            trainee.step(*self._samples())
        trainee.drain()
        return {"transfers": trainee.transfers and serialization.to_json(trainee.transfers)}

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Trains some iterations by a method; returns the seconds of all but the first, from step to step."""
        trainee = self._trainees[message["method"]]
        # The first iteration finds no transfers under way, so it counts for nothing.
        batches = [self._samples() for _ in range(message["iterations"] + 1)]
        dist.barrier()
        ends = []
        for batch in batches:
            trainee.step(*batch)
            self.device.synchronize_stream()
            ends.append(time.perf_counter())
        timeline = trainee.timeline
        trainee.drain()
        seconds = [end - start for start, end in itertools.pairwise(ends)]
        return {"seconds": seconds, "timeline": timeline and serialization.to_json(timeline)}

    def transfers(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Performs a method's transfers while nothing computes; returns their seconds, and those that cores compute."""
        trainee = self._trainees[message["method"]]
        seconds, computing = [], []
        for _ in range(message["repetitions"]):
            dist.barrier()
            began, core_began = time.perf_counter(), time.process_time()
            trainee.transfer()
            seconds.append(time.perf_counter() - began)
            computing.append(time.process_time() - core_began)
        return {"seconds": statistics.median(seconds), "computing": statistics.median(computing)}

    def _samples(self) -> tuple[torch.Tensor, ...]:
        found = self._reader.shard(self._iteration, self._shard)
        self._iteration += 1
        return tuple(tensor.to(self._place) for tensor in found)


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    serve(ComparedReplica)


if __name__ == "__main__":
    main()

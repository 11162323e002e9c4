"""A rank that trains one job by several techniques, and the entry point of its process."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch

from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster
from deeppool.collectives.layout import Layout
from deeppool.collectives.transfer_methods import CARAMEL, DDP
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.comparison.ways import Way, Ways
from deeppool.execution.data_parallel.compared_methods import make_trainee, ranks_of_jobs
from deeppool.execution.eager_sgd import EagerSGD
from deeppool.execution.joined_rank import JoinedRank
from deeppool.execution.load_imbalance import load_delay
from deeppool.execution.rank import Command
from deeppool.execution.ranks import PLAN
from deeppool.execution.stages import Stage, stages_of
from deeppool.execution.trainer import Trainer
from deeppool.execution.training_task import user_task
from deeppool.execution.worker import serve
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.layer import LayerGraph
from deeppool.interleaving.crossover.job_on_rank import JobOnRank, RandomNumbers
from deeppool.interleaving.crossover.transfer_queue import TransferQueue
from deeppool.interleaving.wavelet.driver import WaveDriver
from deeppool.interleaving.wavelet.model_parallel import WaveletModelParallel
from deeppool.interleaving.wavelet.rotation import partitions
from deeppool.planning.plan import Plan
from deeppool.processes.heartbeat import Heartbeat
from deeppool.processes.managed_process import Message
from deeppool.processes.worker_sockets import place_sockets_in
from deeppool.runs.technique_comparison import names
from deeppool.runs.technique_comparison.pipeline import PipelineSteps
from deeppool.runs.technique_comparison.steps import (
    CrossoverSteps,
    EagerTraining,
    PartitionSteps,
    Read,
    Steps,
    TimedSteps,
    TraineeSteps,
    TrainerSteps,
)
from deeppool.training.step import Batch
from deeppool.training.training_job import load_job


class TechniqueRank(JoinedRank):
    """One rank of compared techniques."""

    def __init__(self, setup: Message, heartbeat: Heartbeat) -> None:
        """Joins the other ranks, captures the model, and opens the data."""
        place_sockets_in(Path(setup["folder"]))
        super().__init__(setup, heartbeat)
        heartbeat.enter("making the model and the data")
        self._job = load_job(self.folder)
        self._task = user_task(self._job, setup["batch"], self.place)
        self._batch = setup["batch"]
        self._cluster: Cluster | None = None
        self._ways: Ways[Way] = Ways(self._make)
        self._makers: dict[str, Callable[[Message], Steps]] = {
            names.BURST: lambda _: self._planned(),
            names.CROSSOVER: lambda _: self._crossed_over(),
            names.TWO_WAVES: lambda _: self._two_waves(),
            names.ONE_PARTITION: lambda _: self._partitions(1),
            names.ROTATING: lambda _: self._partitions(self.ranks),
            names.PIPELINE: lambda message: self._pipeline("1F1B", message["micro_batches"]),
            names.GPIPE: lambda message: self._pipeline("GPipe", message["micro_batches"]),
        }

    @property
    def commands(self) -> Mapping[str, Command]:
        """All commands by name."""
        return {**super().commands, **self._ways.commands}

    def _make(self, message: Message) -> tuple[Way, dict[str, Any]]:
        name, steps = message["way"], count()
        if name in (names.MAJORITY, names.SOLO):
            delay = load_delay(self.folder, self.rank, lambda: next(steps))
            return EagerTraining(EagerSGD(mode=name), self._job, self._own(), self._read(), delay), {}
        made = self._makers.get(name, self._sending)(message)
        for _ in range(message["warm_up"]):
            made.step()
        made.drain()
        return TimedSteps(made, self.device, load_delay(self.folder, self.rank, lambda: next(steps))), {}

    def _sending(self, message: Message) -> Steps:
        """Returns DDP of one job or two, or Caramel."""
        name, cluster = message["way"], Cluster(self.ranks)
        if name == CARAMEL:
            cluster = serialization.from_json(message["cluster"], Cluster, "the measured network")
        made = []
        for place in ranks_of_jobs(2 if name == names.APART else 1, message["count"]):
            with self.device.unbound():
                method, replica = CARAMEL if name == CARAMEL else DDP, self._own().source
                trainee = make_trainee(method, self._job, replica, cluster, message["bucket"], place)
            made.append((trainee, self._read(2 if name == names.DOUBLED_DDP else 1, place)))
        return TraineeSteps(made)

    def _planned(self) -> Steps:
        plan = serialization.read(self.folder / PLAN, Plan)
        captured = user_task(self._job, self._batch, self.place, plan).captured
        return TrainerSteps(
            self._trainer(captured, stages_of(plan), overlap_sync=plan.overlap_sync, buckets=plan.buckets),
            self._batches(),
        )

    def _two_waves(self) -> Steps:
        captured = self._own()
        whole = Stage("all", tuple(range(len(captured.graph.layers))), Layout(tuple(range(self.ranks)), self._batch))
        return TrainerSteps(self._trainer(captured, [whole], make_driver=WaveDriver), self._batches())

    def _trainer(self, captured: CapturedModel, stages: Any, **settings: Any) -> Trainer:
        with self.device.unbound():
            return Trainer(captured, stages, ProcessGroup(self.device), self._job, replay_graphs=False, **settings)

    def _crossed_over(self) -> Steps:
        queue = TransferQueue(self.device)
        jobs = [
            JobOnRank(
                name,
                user_task(load_job(self.folder), self._batch, self.place),
                self._batch,
                queue,
                self.device,
                self.place,
                RandomNumbers(self._job.seed),
            )
            for name in ("first job", "second job")
        ]
        return CrossoverSteps(jobs, queue.close_groups)

    def parts(self, graph: LayerGraph) -> tuple[tuple[int, ...], ...]:
        """Returns the layers of each partition, the same for waves and pipelines."""
        return partitions(graph, self.ranks)

    def _partitions(self, waves: int) -> Steps:
        # Each wave trains as many samples as a rank does by data parallelism.
        batch = self._batch * waves // self.ranks
        job, parts = load_job(self.folder), self.parts(self._task.captured.graph)
        with self.device.unbound():
            training = WaveletModelParallel(job, global_batch=batch, waves=waves, parts=parts, place=self.place)
        return PartitionSteps(training, self._batches())

    def _pipeline(self, schedule: str, micro_batches: int) -> Steps:
        whole, captured = self._batches(), self._own()

        def read() -> tuple[torch.Tensor, ...]:
            return tuple(value.to(self.place) for value in whole()(range(self._batch)))

        parts = self.parts(captured.graph)
        return PipelineSteps(self._job, captured, parts, micro_batches, read, self.place, schedule=schedule)

    def _own(self) -> CapturedModel:
        """Returns a replica for one way."""
        return self._task.captured.copy()

    def _read(self, batches: int = 1, place: Sequence[int] = ()) -> Read:
        """Returns what reads this rank's share of the next batches, divided among some ranks, by default all."""
        steps = count()
        shard = Layout(tuple(place or range(self.ranks)), self._batch).shard(self.rank)

        def read() -> tuple[torch.Tensor, ...]:
            parts = [self._task.samples(next(steps), shard) if shard else () for _ in range(batches)]
            return tuple(torch.cat(tensors).to(self.place) for tensors in zip(*parts, strict=True))

        return read

    def _batches(self) -> Callable[[], Batch]:
        """Returns what returns the next batch, in host memory: a step sends it on the stream that reads it."""
        steps = count()
        return lambda: partial(self._task.samples, next(steps))


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    serve(TechniqueRank)


if __name__ == "__main__":
    main()

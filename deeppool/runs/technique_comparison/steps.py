"""A step of each way on one rank, timed from end to end."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from deeppool.device.protocol import Device
from deeppool.execution.comparison.ways import Way
from deeppool.execution.data_parallel.compared_methods import Trainee
from deeppool.execution.eager_sgd import EagerSGD
from deeppool.execution.span_recorder import RawSpan, RecordedSpan
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.losses import classification_loss
from deeppool.interleaving.crossover.job_on_rank import JobOnRank, take_turn
from deeppool.interleaving.wavelet.model_parallel import WaveletModelParallel
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.training.step import Batch
from deeppool.training.training_job import TrainingJob

Read = Callable[[], tuple[torch.Tensor, ...]]
"""Reads the next samples."""


class Steps:
    """Training by one way on one rank; this one records no spans, and completes every round at once."""

    def step(self) -> None:
        """Makes a round, whose end may be left for the next."""
        raise NotImplementedError

    @property
    def spans(self) -> list[RawSpan]:
        """Spans of the last round, or of as many as it takes to see them overlap; empty where none are recorded."""
        return []

    def drain(self) -> None:
        """Completes the round that is under way."""

    def close(self) -> None:
        """Ends it; every rank calls it."""


class TimedSteps(Way):
    """A way of such steps."""

    def __init__(self, steps: Steps, device: Device, delay: Callable[[], None]) -> None:
        """Takes the steps, and what each of them waits for first."""
        self._steps, self._device, self._delay = steps, device, delay

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Trains some rounds after one that does not count, as no transfer of an earlier one is under way in it."""
        ends: list[float] = []
        for _ in range(message["rounds"] + 1):
            self._delay()
            self._steps.step()
            self._device.synchronize_stream()
            ends.append(time.perf_counter())
        self._steps.drain()
        return {"seconds": [end - start for start, end in itertools.pairwise(ends)], "spans": self._steps.spans}

    def close(self) -> None:
        """Ends the steps."""
        self._steps.close()


class TraineeSteps(Steps):
    """Steps of a method of sending gradients, of one job or several."""

    def __init__(self, jobs: list[tuple[Trainee, Read]]) -> None:
        """Takes the training of each job, and what reads this rank's samples of it."""
        self._jobs = jobs

    def step(self) -> None:
        """Makes an update of each job."""
        for trainee, read in self._jobs:
            trainee.step(*read())

    def drain(self) -> None:
        """Completes the updates that are under way."""
        for trainee, _ in self._jobs:
            trainee.drain()

    def close(self) -> None:
        """Ends the method."""
        for trainee, _ in self._jobs:
            trainee.close()


class TrainerSteps(Steps):
    """Steps of a plan, or of two waves."""

    def __init__(self, trainer: Trainer, batch: Callable[[], Batch]) -> None:
        """Takes the trainer, and what returns the next batch."""
        self._trainer, self._batch = trainer, batch
        self._recorded: list[list[RecordedSpan]] = []

    def step(self) -> None:
        """Makes an iteration."""
        self._trainer.iterate([self._batch()])
        # Another thread may add to them in the next iteration.
        self._recorded = [*self._recorded[-1:], self._trainer.recorded]

    @property
    def spans(self) -> list[RawSpan]:
        """Spans of the last two iterations."""
        return self._trainer.timed([span for each in self._recorded for span in each])

    def drain(self) -> None:
        """Completes the updates of all iterations."""
        self._trainer.driver.drain()

    def close(self) -> None:
        """Ends the groups."""
        self._trainer.close()


class CrossoverSteps(Steps):
    """Turns of several jobs: one step of each."""

    def __init__(self, jobs: list[JobOnRank], close: Callable[[], None]) -> None:
        """Takes the jobs, and what ends their common queue."""
        self._jobs, self._close = jobs, close

    def step(self) -> None:
        """Settles the earlier step of each job, and computes the next one."""
        for job in self._jobs:
            take_turn(job, settles=job.in_flight, computes=True)

    def drain(self) -> None:
        """Settles all jobs."""
        for job in self._jobs:
            if job.in_flight:
                job.settle()

    def close(self) -> None:
        """Ends the jobs."""
        for job in self._jobs:
            job.close()
        self._close()


class PartitionSteps(Steps):
    """Steps of partitions that rotate over the ranks."""

    def __init__(self, training: WaveletModelParallel, batch: Callable[[], Batch]) -> None:
        """Takes the training, and what returns the next batch."""
        self._training, self._batch = training, batch

    def step(self) -> None:
        """Makes an update."""
        self._training.step(self._batch())

    @property
    def spans(self) -> list[RawSpan]:
        """Spans of the last update."""
        return self._training.spans

    def close(self) -> None:
        """Ends the groups."""
        self._training.close()


class EagerTraining(Way):
    """A way whose replicas do not wait for late ranks; it has no rounds that all ranks make, only updates."""

    def __init__(
        self, method: EagerSGD, job: TrainingJob, captured: CapturedModel, read: Read, delay: Callable[[], None]
    ) -> None:
        """Makes the optimizer of a replica, which is trained on samples that this rank reads."""
        self._method, self._read, self._delay = method, read, delay
        self._model, self._loss = captured.source, job.loss or classification_loss
        self._optimizer = job.optimizer(
            [(name, value) for name, value in self._model.named_parameters() if value.requires_grad]
        )

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Trains some updates; returns the mean seconds of one, and this rank's gradients for each."""
        with self._method.wrap(self._model, self._optimizer) as replica:
            dist.barrier()
            started = time.perf_counter()
            while replica.updates < message["rounds"]:
                self._delay()
                *inputs, target = self._read()
                self._loss(self._model(*inputs), target).backward()
                replica.step()
            seconds = time.perf_counter() - started
        return {
            "seconds": [seconds / message["rounds"]],
            "spans": [],
            "gradients": replica.gradients / message["rounds"],
        }

"""One job's share on one rank: its trainer, its samples, its random numbers, and its steps in parts."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deeppool.collectives.buckets import ONE_BUCKET
from deeppool.collectives.layout import Layout
from deeppool.device.protocol import Device, Precision
from deeppool.execution import checkpoint
from deeppool.execution.gradient_sync import ScheduleChoice
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.execution.training_task import TrainingTask
from deeppool.interleaving.crossover.transfer_queue import TransferQueue


class RandomNumbers:
    """A job's own states of the random numbers of torch, numpy and Python on the CPU.

    What a job draws, in its dataset for example, must not depend on the jobs beside it.
    """

    def __init__(self, seed: int) -> None:
        """Seeds them."""
        with _restored():
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            self._states = _states()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes them the process's in the block."""
        with _restored():
            _set(self._states)
            try:
                yield
            finally:
                self._states = _states()


class JobOnRank:
    """One job on one rank."""

    def __init__(
        self,
        name: str,
        task: TrainingTask,
        batch: int,
        queue: TransferQueue,
        device: Device,
        place: torch.device,
        random_numbers: RandomNumbers,
        *,
        precision: Precision = "fp32",
        choose_schedule: ScheduleChoice | None = None,
    ) -> None:
        """Makes the trainer: data parallelism over all ranks, all gradients of a type in one all-reduce.

        Args:
            name: name of the job.
            task: what it trains.
            batch: samples of a global batch.
            queue: all-reduces of all jobs.
            device: device of this rank.
            place: the same for tensors.
            random_numbers: of this job.
            precision: precision of products and convolutions.
            choose_schedule: chooses the schedule of its all-reduce; None: the library's own.
        """
        self.name, self._task, self._device, self._place = name, task, device, place
        self._random, self._precision = random_numbers, precision
        layers = tuple(range(len(task.captured.graph.layers)))
        with device.unbound(), device.arithmetic(precision):
            self.trainer = Trainer(
                task.captured,
                [Stage(name, layers, Layout(tuple(range(queue.ranks)), batch))],
                queue,
                task.training,
                precision,
                buckets=ONE_BUCKET,
                choose_schedule=choose_schedule,
            )
        self._transfers = queue.transfers
        self.updates = 0
        self.in_flight = False
        """Whether a step is computed and not settled."""

    def compute(self) -> float:
        """Computes a step and starts to sum its gradients; returns this rank's part of the loss."""
        with self._random.current(), self._device.arithmetic(self._precision):
            self.trainer.step.compute([self._batch] * self._task.training.accumulation)
        self.trainer.step.start_sync()
        self._device.synchronize_stream()
        self.in_flight = True
        return self.trainer.step.loss()

    def synchronize(self) -> None:
        """Waits until what was launched is complete."""
        self._device.synchronize_stream()

    def settle(self) -> list[tuple[float, float]]:
        """Waits for the gradients of the step before, and updates; returns when its transfers began and ended."""
        self._transfers.clear()
        self.trainer.step.finish_sync()
        self.trainer.step.update()
        self.in_flight = False
        self.updates += 1
        self.trainer.recorded.clear()
        return list(self._transfers)

    def save(self, folder: Path) -> dict[str, Any]:
        """Settles, and writes this rank's part of a checkpoint."""
        if self.in_flight:
            self.settle()
        with self._random.current():
            return checkpoint.save_shard(self.trainer, folder)

    def load(self, folder: Path, updates: int) -> None:
        """Restores the state of a checkpoint."""
        with self._random.current():
            checkpoint.load(self.trainer, folder)
        self.updates = updates

    def close(self) -> None:
        """Settles, and ends the trainer."""
        if self.in_flight:
            self.settle()
        self.trainer.close()

    def _batch(self, samples: range) -> tuple[torch.Tensor, ...]:
        tensors = self._task.samples(self.trainer.step.iterations, samples)
        return tuple(tensor.to(self._place) for tensor in tensors)


def take_turn(job: JobOnRank, *, settles: bool, computes: bool) -> dict[str, Any]:
    """Takes a job's turn; returns its times on this rank, and its loss.

    ``start`` is when it had all that it needed: the end of its own transfer, if that was later than its turn.
    """
    began = time.perf_counter()
    transfers = job.settle() if settles else []
    loss = job.compute() if computes else None
    if not computes:
        # A turn ends when the device has done its work, here the update.
        job.synchronize()
    return {
        "job": job.name,
        "settles": settles,
        "computes": computes,
        "turn": began,
        "start": max([began, *(ended for _, ended in transfers)]),
        "end": time.perf_counter(),
        "transfers": transfers,
        "loss": loss,
    }


def _states() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


@contextmanager
def _restored() -> Iterator[None]:
    before = _states()
    try:
        yield
    finally:
        _set(before)

"""The training of a background job in any process: its task, its stream, and its steps in pieces."""

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from deeppool.base import serialization
from deeppool.base.sharing import Sharing
from deeppool.collocation.pieces import longest_piece, single_stage, split_model
from deeppool.device.background_stream import background_stream
from deeppool.device.protocol import Device, Precision
from deeppool.execution.communicator import SingleRank
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.execution.training_task import TrainingTask, synthetic_task, user_task
from deeppool.job import job_from
from deeppool.processes.managed_process import Message
from deeppool.processes.worker_sockets import place_sockets_in
from deeppool.training.training_job import load_job

KEPT_PIECES = 2000
"""Pieces of a phase that are reported, for the timeline of one iteration: its last seconds."""
FINAL_STEPS = 10
"""Steps over which the final loss is the mean: that of one batch is noise."""


class BackgroundTraining:
    """Trains one background job on one rank, without torch.distributed."""

    def __init__(
        self, setup: Message, device: Device, place: torch.device, *, paced: bool, precision: Precision = "fp32"
    ) -> None:
        """Builds the model and its data, and splits its step.

        Args:
            setup: ``job`` (fields of a :class:`deeppool.job.Job`), or the ``batch`` of a saved training, and its
                folder ``saved_job``, if that is another one; ``folder`` of the run; ``sharing``, unless all of it is
                the default.
            device: device of the training, selected.
            place: the same as torch names it.
            paced: whether a gate admits its pieces.
            precision: precision of products and convolutions.
        """
        self.sharing = Sharing(**setup.get("sharing", {}))
        self.task, self.batch = load_task(setup, place)
        self.shared = background_stream(device, self.sharing)
        """Stream of the training, and what was granted."""
        self.stream = self.shared.stream
        self._precision = precision
        self._read: tuple[int, tuple[torch.Tensor, ...]] | None = None
        """Number of the last batch read, and the batch."""
        captured = self.task.captured
        with self.stream.current():
            if paced and self.sharing.in_pieces:
                limit = longest_piece(self.sharing, device)
                stages = split_model(captured, self.batch, self._trainer, limit)
            else:
                stages = single_stage(captured, self.batch)
            self.trainer = self._trainer(stages)
        self.pieces = 2 * len(stages) * self.task.training.accumulation + 1
        """Pieces of a step."""
        self.updates = 0
        """Updates of the training, those before a checkpoint included."""
        self.samples = 0
        """Samples of this process."""
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        self._last_losses: deque[float] = deque(maxlen=FINAL_STEPS)

    def _trainer(self, stages: Sequence[Stage]) -> Trainer:
        return Trainer(self.task.captured, stages, SingleRank(), self.task.training, self._precision)

    def step(self) -> float:
        """Makes one update; returns its loss."""
        accumulation = self.task.training.accumulation
        with self.stream.current():
            loss = self.trainer.iterate([self._read_batch] * accumulation)
        self.updates += 1
        self.samples += self.batch * accumulation
        self.last_loss = loss
        self._last_losses.append(loss)
        self.first_loss = loss if self.first_loss is None else self.first_loss
        return loss

    @property
    def final_loss(self) -> float | None:
        """Mean loss of the last :data:`FINAL_STEPS` steps of this process; None: there was none."""
        return fmean(self._last_losses) if self._last_losses else None

    def progress(self, clock_offset: float) -> dict[str, Any]:
        """Returns updates, samples and losses, and the time on a clock that is so many seconds ahead of this one's."""
        return {
            "updates": self.updates,
            "samples": self.samples,
            "first_loss": _recordable(self.first_loss),
            "last_loss": _recordable(self.last_loss),
            "final_loss": _recordable(self.final_loss),
            "clock": time.perf_counter() + clock_offset,
        }

    def _read_batch(self, samples: range) -> tuple[torch.Tensor, ...]:
        # The first piece reads the inputs, the last one the targets.
        iteration = self.trainer.step.iterations
        if self._read is None or self._read[0] != iteration:
            self._read = iteration, self.task.samples(iteration, samples)
        return self._read[1]


def load_task(setup: Message, place: torch.device) -> tuple[TrainingTask, int]:
    """Builds a background's training task; returns it with the samples of each batch.

    Args:
        setup: as for :class:`BackgroundTraining`.
        place: device of the model.
    """
    folder = Path(setup["folder"])
    if "job" in setup:
        job = job_from(setup["job"])
        return synthetic_task(job, place, folder), job.batch
    place_sockets_in(folder)
    saved, batch = load_job(setup.get("saved_job", folder)), setup["batch"]
    return user_task(saved, batch, place, background=True), batch


def _recordable(loss: float | None) -> float | None:
    """Returns the loss; None where it is no number that a record may hold."""
    return loss if loss is not None and serialization.may_hold(loss) else None

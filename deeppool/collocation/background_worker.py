"""Trains one background job in a process of its own, on one rank and without torch.distributed."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from deeppool.base.sharing import Sharing
from deeppool.collocation.paced_launcher import PacedLauncher
from deeppool.collocation.pieces import PIECE_SECONDS, longest_piece, split_model, stage_of
from deeppool.device.cpu import LOWEST
from deeppool.device.cuda import all_hardware_queues
from deeppool.device.find import find_device
from deeppool.device.heap import keep_memory
from deeppool.device.protocol import Device, Stream, StreamPriority
from deeppool.device.sm_share import sm_share
from deeppool.execution import checkpoint
from deeppool.execution.checkpoint_folder import CheckpointFolder
from deeppool.execution.communicator import SingleRank
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.execution.training_task import TrainingTask, place_sockets_in, synthetic_task, user_task
from deeppool.graph.capture.capture import CapturedModel
from deeppool.job import job_from
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.processes.shared_page import SharedPage
from deeppool.training.training_job import load_job

PROGRESS_SECONDS = 0.5
"""Interval between two progress reports: each costs the launcher's machine some time."""
KEPT_CHECKPOINTS = 2


class BackgroundWorker:
    """Trains one background job in this process, on one rank and without torch.distributed."""

    def __init__(self, setup: Message, commands: CommandChannel) -> None:
        """Builds the model and its data.

        Args:
            setup: ``job`` (fields of a :class:`deeppool.job.Job`), or ``saved_job`` (folder of a saved training) and
                ``batch``; ``folder`` of the run; where it is paced there, ``sharing`` and the ``rank`` beside which it
                runs; on a GPU ``device`` and ``index``.
            commands: channel to the launcher.
        """
        self._commands = commands
        with all_hardware_queues():
            device = find_device(setup.get("device", "cpu"))
            place = device.torch_device(setup.get("index", 0))
            if device.kind == "cpu":
                keep_memory()
                torch.set_num_threads(1)
            else:
                device.select(setup["index"])
                _limit_gpu_memory(setup.get("memory"), place)
        self._device, self._place = device, place
        self.task, self.batch = load_task(setup, place)
        self._setup = setup
        self._batch: tuple[int, tuple[torch.Tensor, ...]] | None = None
        self._sharing = Sharing(**setup.get("sharing", {}))
        self._stream, self.granted, self._kept = create_stream(self._sharing, device)
        self._paced = "rank" in setup
        self.trainer = self._trainer(self._stages())
        self.updates = 0
        """Updates of the training, those before a checkpoint included."""
        self._reported = -math.inf
        """Time of the last progress report."""
        self._first_loss: float | None = None
        self._last_loss: float | None = None
        self._samples = 0
        self._slowest = 0.0
        self._reports_progress = False
        self._clock_offset = 0.0

    def _stages(self) -> Sequence[Stage]:
        captured = self.task.captured
        if not (self._paced and self._sharing.in_pieces):
            return single_stage(captured, self.batch)
        with self._stream.current():
            limit = longest_piece(self._sharing) if self._device.kind == "cpu" else PIECE_SECONDS
            return split_model(captured, self.batch, self._trainer, self._device, limit)

    def enable_pacing(self, priority: str) -> None:
        """Makes each piece wait until the foreground admits it; ``priority`` is the granted one."""
        if self._paced:
            # Polling on a GPU would only use up a core.
            self.trainer.watcher = PacedLauncher(
                self._sharing,
                SharedPage(self._setup["folder"], self._setup["rank"]),
                self._must_stop,
                polls=priority == LOWEST and self._device.kind == "cpu",
                device=None if self._device.kind == "cpu" else self._device,
            )

    def _must_stop(self) -> bool:
        """Whether a command waits. Called while a piece is held back, so it reports progress too."""
        if self._reports_progress:
            self.report_progress()
        return self._commands.pending()

    def _trainer(self, stages: Sequence[Stage]) -> Trainer:
        with self._stream.current():
            return Trainer(self.task.captured, stages, SingleRank(), self.task.training)

    def step(self) -> float:
        """Makes one update; returns its loss."""
        accumulation = self.task.training.accumulation
        with self._stream.current():
            loss = self.trainer.iterate([self._read_batch] * accumulation)
        self.updates += 1
        self._samples += self.batch * accumulation
        self._last_loss = loss
        self._first_loss = loss if self._first_loss is None else self._first_loss
        return loss

    def time_step(self) -> float:
        """Makes one update; returns the seconds that it holds its core, whatever else runs there, or its GPU."""
        clock = time.process_time if self._device.kind == "cpu" else time.perf_counter
        before = clock()
        self.step()
        return clock() - before

    def _read_batch(self, samples: range) -> tuple[torch.Tensor, ...]:
        # The first piece reads the inputs, the last one the targets.
        if self._batch is None or self._batch[0] != self.trainer.iterations:
            read = self.task.samples(self.trainer.iterations, samples)
            self._batch = self.trainer.iterations, tuple(tensor.to(self._place) for tensor in read)
        return self._batch[1]

    def train(
        self, steps: float, clock_offset: float, *, reports_progress: bool = False
    ) -> list[tuple[float, float, float]]:
        """Trains until the next command, for ``steps`` at most.

        Args:
            steps: maximum number of steps.
            clock_offset: the launcher's clock minus this machine's.
            reports_progress: whether to report progress meanwhile.

        Returns:
            Clock, CPU seconds and loss: at the start, and at the end of each step.
        """
        self._reports_progress, self._clock_offset = reports_progress, clock_offset
        if not self.updates:
            self.step()
        log = [(time.perf_counter() + clock_offset, time.process_time(), 0.0)]
        while not self._commands.pending() and len(log) <= steps:
            loss = self.step()
            log.append((time.perf_counter() + clock_offset, time.process_time(), loss))
            if reports_progress:
                self.report_progress()
        return log

    # -- a job with an end of its own -----------------------------------------------------------------

    def serve(self, goal: Message) -> dict[str, Any]:
        """Trains from the last checkpoint to the job's end, or until the next command.

        Args:
            goal: ``steps`` (None: no end), ``checkpoints`` (folder, or None) and ``every`` how many updates.

        Returns:
            ``why`` it is over: ``finished``, ``asked``, or what is wrong with its loss; and the fields of ``progress``.
        """
        graph = self.task.captured.graph
        checkpoints = CheckpointFolder(
            path=None if goal["checkpoints"] is None else Path(goal["checkpoints"]),
            every=goal["every"],
            keep=KEPT_CHECKPOINTS,
            model=graph.model,
            graph_fingerprint=graph.fingerprint,
            global_batch=self.batch,
        )
        with checkpoints.locked():
            return self._serve(checkpoints, math.inf if goal["steps"] is None else goal["steps"])

    def _serve(self, checkpoints: CheckpointFolder, end: float) -> dict[str, Any]:
        self._reports_progress = True
        if (found := checkpoints.find_resumable()) is not None:
            checkpoint.load(self.trainer, found[0])
            self.updates = found[1]
        saved = self.updates
        self.report_progress()
        while self.updates < end and not self._commands.pending():
            before = time.process_time()
            loss = self.step()
            self._slowest = max(self._slowest, time.process_time() - before)
            if not math.isfinite(loss):
                return {"why": f"its loss is {loss} after step {self.updates}", **self._progress()}
            if checkpoints.path is not None and self.updates % checkpoints.every == 0:
                checkpoints.save(self._save_shard, self.updates)
                saved = self.updates
            self.report_progress()
        if checkpoints.path is not None and saved < self.updates:
            checkpoints.save(self._save_shard, self.updates)
        return {"why": "finished" if self.updates >= end else "asked", **self._progress()}

    def report_progress(self) -> None:
        """Reports progress, at most every :data:`PROGRESS_SECONDS`."""
        now = time.monotonic()
        if now - self._reported >= PROGRESS_SECONDS:
            self._reported = now
            self._commands.answer("progress", **self._progress())

    def _progress(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "samples": self._samples,
            "first_loss": _finite(self._first_loss),
            "last_loss": _finite(self._last_loss),
            "cpu": time.process_time(),
            "clock": time.perf_counter() + self._clock_offset,
            "slowest": self._slowest,
        }

    def _save_shard(self, folder: Path) -> list[dict[str, Any]]:
        return [checkpoint.save_shard(self.trainer, folder)]


def single_stage(captured: CapturedModel, batch: int) -> tuple[Stage, ...]:
    """Returns the whole model as one stage."""
    return (stage_of(captured, range(len(captured.graph.layers)), batch),)


def load_task(setup: Message, place: torch.device) -> tuple[TrainingTask, int]:
    """Builds a background's training task; returns it with the samples of each batch.

    Args:
        setup: ``job``, or ``saved_job`` and ``batch``, as for :class:`BackgroundWorker`, and the ``folder`` of the run.
        place: device of the model.
    """
    folder = Path(setup["folder"])
    if "job" in setup:
        job = job_from(setup["job"])
        return synthetic_task(job, place, folder), job.batch
    place_sockets_in(folder)
    return user_task(load_job(setup["saved_job"]), setup["batch"], place), setup["batch"]


def create_stream(sharing: Sharing, device: Device) -> tuple[Stream, str | None, Any]:
    """Creates a background's stream; returns it, what a GPU granted (None on a CPU), and what must live as long."""
    if device.kind == "cpu":
        return device.stream("low"), None, None
    if sharing.share is None:
        priority: StreamPriority = "high" if sharing.priority == "normal" else "low"
        return device.stream(priority), f"stream priority {priority}", None
    part = sm_share(device, sharing.share)
    where = f"on all multiprocessors ({part.problem})" if part.problem else f"on {part.multiprocessors} multiprocessors"
    return part.stream, f"stream priority {part.stream.priority}, {where}", part


def _limit_gpu_memory(budget: float | None, place: torch.device) -> None:
    """Makes allocations over the budget fail in this process, as if the GPU were smaller (never run on a GPU)."""
    if budget is not None:
        total = torch.cuda.get_device_properties(place).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), place)


def _finite(loss: float | None) -> float | None:
    """Returns the loss; None where it is not finite, which JSON cannot express."""
    return loss if loss is not None and math.isfinite(loss) else None

"""A background job: a training on one rank, of its own process and without torch.distributed."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from deeppool.base.sharing import Sharing
from deeppool.collectives.layout import Layout
from deeppool.collocation.paced_launcher import PacedLauncher
from deeppool.collocation.pieces import PIECE_SECONDS, in_pieces, longest_piece
from deeppool.device.common import Device, Stream, StreamPriority, find_device
from deeppool.device.cpu import LOWEST
from deeppool.device.heap import keep_memory
from deeppool.device.sm_share import sm_share
from deeppool.errors import InvalidValueError
from deeppool.execution import checkpoint
from deeppool.execution.checkpoint import Checkpoint
from deeppool.execution.communicator import Alone
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.execution.training_task import TrainingTask, keep_sockets_in, own_work, synthetic_work
from deeppool.graph.capture.capture import CapturedModel
from deeppool.job import job_from
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.processes.shared_page import SharedPage
from deeppool.training.training_job import load_job

TELL_SECONDS = 0.5
"""Between two lines of progress: each costs the launcher's machine some time."""
KEEP = 2
"""Checkpoints that stay."""


class BackgroundWorker:
    """One background job in this process."""

    def __init__(self, setup: Message, commands: CommandChannel) -> None:
        """Builds the model and its data.

        Args:
            setup: ``job`` (fields of a :class:`deeppool.job.Job`) or ``own`` (folder of a saved training of the
                user's) and ``batch``; ``folder`` of the run, and, where it must obey one there, ``sharing`` and the
                ``rank`` beside which it runs; ``device`` and ``index`` where it is no core.
            commands: to and from the launcher.
        """
        self._commands = commands
        device = find_device(setup.get("device", "cpu"))
        place = device.torch_device(setup.get("index", 0))
        if device.kind == "cpu":
            keep_memory()
            torch.set_num_threads(1)
        else:
            device.select(setup["index"])
            _limit_gpu_memory(setup.get("memory"), place)
        self._device, self._place = device, place
        self.work, self.batch = work_of(setup, place)
        self._setup = setup
        self._batch: tuple[int, tuple[torch.Tensor, ...]] | None = None
        self._sharing = Sharing(**setup.get("sharing", {}))
        self._stream, self.granted, self._kept = granted_stream(self._sharing, device)
        self._throttled = "rank" in setup
        self.trainer = self._trainer(self._stages())
        self.updates = 0
        """Of the training, those before a checkpoint included."""
        self._told = -math.inf
        self._first: float | None = None
        self._last: float | None = None
        self._samples = 0
        self._slowest = 0.0
        self._tells = False
        self._ahead = 0.0

    def _stages(self) -> Sequence[Stage]:
        captured = self.work.captured
        if not (self._throttled and self._sharing.in_pieces):
            return whole(captured, self.batch)
        with self._stream.current():
            limit = longest_piece(self._sharing) if self._device.kind == "cpu" else PIECE_SECONDS
            return in_pieces(captured, self.batch, self._trainer, self._device, limit)

    def pace(self, priority: str) -> None:
        """From now on it begins a piece when the foreground lets it; ``priority`` is the one that it was granted."""
        if self._throttled:
            board = SharedPage(self._setup["folder"], self._setup["rank"])
            # On a GPU to look again and again would take nothing but a core.
            spins = priority == LOWEST and self._device.kind == "cpu"
            device = None if self._device.kind == "cpu" else self._device
            self.trainer.watcher = PacedLauncher(self._sharing, board, self._hurries, spins=spins, device=device)

    def _hurries(self) -> bool:
        """Whether it was told to stop; a sign of life, too."""
        if self._tells:
            self.tell()
        return self._commands.pending()

    def _trainer(self, stages: Sequence[Stage]) -> Trainer:
        with self._stream.current():
            return Trainer(self.work.captured, stages, Alone(), self.work.training)

    def step(self) -> float:
        """One update; returns its loss."""
        accumulation = self.work.training.accumulation
        with self._stream.current():
            loss = self.trainer.iterate([self._samples_of] * accumulation)
        self.updates += 1
        self._samples += self.batch * accumulation
        self._last = loss
        self._first = loss if self._first is None else self._first
        return loss

    def time_step(self) -> float:
        """One more update; the seconds that it holds its core, whoever else wants it, or its GPU."""
        clock = time.process_time if self._device.kind == "cpu" else time.perf_counter
        before = clock()
        self.step()
        return clock() - before

    def _samples_of(self, samples: range) -> tuple[torch.Tensor, ...]:
        # The first piece asks for its inputs, the last one for the targets.
        if self._batch is None or self._batch[0] != self.trainer.iterations:
            read = self.work.samples(self.trainer.iterations, samples)
            self._batch = self.trainer.iterations, tuple(tensor.to(self._place) for tensor in read)
        return self._batch[1]

    def train(self, steps: float, ahead: float, *, tells: bool = False) -> list[tuple[float, float, float]]:
        """Steps until the next command, but so many at most.

        Args:
            steps: at most.
            ahead: what the launcher's clock shows more than this machine's.
            tells: whether it gives signs of life meanwhile.

        Returns:
            Clock, CPU seconds and loss: at the start, and at the end of each step.
        """
        self._tells, self._ahead = tells, ahead
        if not self.updates:
            self.step()
        log = [(time.perf_counter() + ahead, time.process_time(), 0.0)]
        while not self._commands.pending() and len(log) <= steps:
            loss = self.step()
            log.append((time.perf_counter() + ahead, time.process_time(), loss))
            if tells:
                self.tell()
        return log

    # -- a job with an end of its own -----------------------------------------------------------------

    def serve(self, goal: Message) -> dict[str, Any]:
        """Trains from the last checkpoint to the job's end, or until the next command.

        Args:
            goal: ``steps`` (None: no end), ``checkpoints`` (folder, or None) and ``every`` how many updates.

        Returns:
            ``why`` it is over: ``finished``, ``asked``, or what is wrong with its loss; and what ``progress`` tells.
        """
        folder = None if goal["checkpoints"] is None else Path(goal["checkpoints"])
        end = math.inf if goal["steps"] is None else goal["steps"]
        self._tells = True
        saved = self.updates = self._resume(folder)
        self.tell()
        while self.updates < end and not self._commands.pending():
            before = time.process_time()
            loss = self.step()
            self._slowest = max(self._slowest, time.process_time() - before)
            if not math.isfinite(loss):
                return {"why": f"its loss is {loss} after step {self.updates}", **self._progress()}
            if folder is not None and self.updates % goal["every"] == 0:
                self._save(folder)
                saved = self.updates
            self.tell()
        if folder is not None and saved < self.updates:
            self._save(folder)
        return {"why": "finished" if self.updates >= end else "asked", **self._progress()}

    def tell(self) -> None:
        """A sign of life, unless the last one is recent. Who waits between pieces must call it while it waits."""
        now = time.monotonic()
        if now - self._told >= TELL_SECONDS:
            self._told = now
            self._commands.answer("progress", **self._progress())

    def _progress(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "samples": self._samples,
            "first_loss": _number(self._first),
            "last_loss": _number(self._last),
            "cpu": time.process_time(),
            "clock": time.perf_counter() + self._ahead,
            "slowest": self._slowest,
        }

    def _resume(self, folder: Path | None) -> int:
        """Updates made before."""
        found = None if folder is None else checkpoint.latest(folder)
        if found is None:
            return 0
        written, graph = checkpoint.read(found), self.work.captured.graph
        if (written.graph_fingerprint, written.global_batch) != (graph.fingerprint, self.batch):
            raise InvalidValueError(
                f"{found} is of {written.model} at batch {written.global_batch}, this is {graph.model} at "
                f"{self.batch} (choose another folder for checkpoints)"
            )
        checkpoint.load(self.trainer, found)
        return written.updates

    def _save(self, folder: Path) -> None:
        partial = checkpoint.begin(folder, self.updates)
        checkpoint.save_shard(self.trainer, partial)
        graph, scale = self.work.captured.graph, self.trainer.update.scale
        record = Checkpoint(
            model=graph.model,
            graph_fingerprint=graph.fingerprint,
            updates=self.updates,
            iterations=self.trainer.iterations,
            global_batch=self.batch,
            ranks=1,
            loss_scale=scale.factor,
            updates_since_scaled=scale.good,
        )
        checkpoint.seal(partial, record, KEEP)


def whole(captured: CapturedModel, batch: int) -> tuple[Stage, ...]:
    """The model in one piece."""
    layers = captured.graph.layers
    name = f"{layers[0].name} … {layers[-1].name}"
    return (Stage(name, tuple(range(len(layers))), Layout((0,), batch)),)


def work_of(setup: Message, place: torch.device) -> tuple[TrainingTask, int]:
    """What is trained, and samples of each of its batches.

    Args:
        setup: ``job``, or ``own`` and ``batch``, as for :class:`BackgroundWorker`, and the ``folder`` of the run.
        place: where the model shall live.
    """
    folder = Path(setup["folder"])
    if "job" in setup:
        job = job_from(setup["job"])
        return synthetic_work(job, place, folder), job.batch
    keep_sockets_in(folder)
    return own_work(load_job(setup["own"]), setup["batch"], place), setup["batch"]


def granted_stream(sharing: Sharing, device: Device) -> tuple[Stream, str | None, Any]:
    """Where a background's work goes, what a GPU granted it (None on a core), and what must be kept as long."""
    if device.kind == "cpu":
        return device.stream("low"), None, None
    if sharing.share is None:
        priority: StreamPriority = "high" if sharing.priority == "normal" else "low"
        return device.stream(priority), f"stream priority {priority}", None
    part = sm_share(device, sharing.share)
    where = f"on all multiprocessors ({part.problem})" if part.problem else f"on {part.multiprocessors} multiprocessors"
    return part.stream, f"stream priority {part.stream.priority}, {where}", part


def _limit_gpu_memory(budget: float | None, place: torch.device) -> None:
    """What is over the budget fails in this process, as if the GPU were smaller (never run)."""
    if budget is not None:
        total = torch.cuda.get_device_properties(place).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), place)


def _number(loss: float | None) -> float | None:
    """None where it is no number: JSON has no word for that."""
    return loss if loss is not None and math.isfinite(loss) else None

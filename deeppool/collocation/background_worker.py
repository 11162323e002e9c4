"""Trains one background job in a process of its own, on one rank and without torch.distributed."""

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.base.sharing import Sharing
from deeppool.collocation.background_training import KEPT_PIECES, BackgroundTraining
from deeppool.collocation.cpu_sampler import CpuSampler, Piece, computing_intervals, intersections
from deeppool.collocation.piece_launcher import PieceLauncher
from deeppool.device.cpu import LOWEST
from deeppool.device.cuda import all_hardware_queues
from deeppool.device.find import find_device
from deeppool.execution import checkpoint
from deeppool.execution.checkpoint_folder import CheckpointFolder
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.processes.shared_page import SharedPage
from deeppool.scheduling.background_limits import BackgroundLimits

MPS_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
"""Environment variable of NVIDIA's MPS: 1 places a process's kernels after those of other processes."""
PROGRESS_SECONDS = 0.5
"""Interval between two progress reports: each costs the launcher's machine some time."""
KEPT_CHECKPOINTS = 2


class BackgroundWorker:
    """Trains one background job in this process, on one rank and without torch.distributed."""

    def __init__(self, setup: Message, commands: CommandChannel) -> None:
        """Builds the model and its data.

        Args:
            setup: as for :class:`~deeppool.collocation.background_training.BackgroundTraining`; the ``rank`` beside
                which it runs, where it is paced there; on a GPU ``device``, ``index`` and ``memory``, its budget.
            commands: channel to the launcher.
        """
        self._commands, self._setup = commands, setup
        if Sharing(**setup.get("sharing", {})).priority != "normal":
            os.environ.setdefault(MPS_PRIORITY, "1")
        with all_hardware_queues():
            device = find_device(setup.get("device", "cpu"))
            place = device.torch_device(setup.get("index", 0))
            device.select(setup.get("index", 0))
            device.limit_memory(setup.get("memory"))
        self._device, self._paced = device, "rank" in setup
        self.training = BackgroundTraining(setup, device, place, paced=self._paced)
        self._reported = -math.inf
        """Time of the last progress report."""
        self._slowest = 0.0
        self._reports_progress = False
        self._clock_offset = 0.0
        self._pieces: deque[Piece] = deque(maxlen=KEPT_PIECES)
        """Last pieces of the current :meth:`train`."""
        self._sampler = CpuSampler()

    def enable_pacing(self, priority: str) -> None:
        """Makes each piece wait until the foreground admits it; ``priority`` is the granted one."""
        if not self._paced:
            return
        page = SharedPage(self._setup["folder"], self._setup["rank"])
        # Polling beside a GPU would only use up a core.
        polls = priority == LOWEST and not self._device.asynchronous
        self.training.trainer.watcher = PieceLauncher(
            self.training.sharing,
            lambda: (BackgroundLimits(*page.limits), page.doing),
            self.training.trainer,
            must_stop=self._must_stop,
            wait=None if polls else page.wait,
        )

    def _must_stop(self) -> bool:
        """Whether a command waits. Called while a piece is held back, so it reports progress too."""
        if self._reports_progress:
            self.report_progress()
        return self._commands.pending()

    def time_step(self) -> float:
        """Makes one update; returns the seconds that it holds its core, whatever else runs there, or its GPU."""
        clock = time.perf_counter if self._device.asynchronous else time.process_time
        before = clock()
        self.training.step()
        return clock() - before

    def train(
        self, steps: float, clock_offset: float, *, reports_progress: bool = False
    ) -> list[tuple[float, float, float]]:
        """Trains until the next command, for ``steps`` at most.

        Args:
            steps: maximum number of steps.
            clock_offset: the launcher's clock minus this machine's.
            reports_progress: whether to report progress meanwhile.

        Returns:
            Clock, seconds that its core was used (on a GPU the clock again), and loss: at the start, and at the end of
            each step.
        """
        self._reports_progress, self._clock_offset = reports_progress, clock_offset
        if not self.training.updates:
            self.training.step()
        self._pieces.clear()
        log = [(*self._now(clock_offset), 0.0)]
        with contextlib.nullcontext() if self._device.asynchronous else self._sampler.sampling():
            while not self._commands.pending() and len(log) <= steps:
                loss = self.training.step()
                log.append((*self._now(clock_offset), loss))
                spans = self.training.trainer.spans
                self._pieces += [(kind, began, ended) for kind, _, _, began, ended in spans]
                if reports_progress:
                    self.report_progress()
        return log

    def computed(self) -> list[Piece]:
        """Returns what the last :meth:`train` computed in its last seconds.

        The times are of the launcher's clock. On a core they leave out the time in which another process had it.
        """
        pieces: Iterable[Piece] = self._pieces
        if not self._device.asynchronous:
            pieces = intersections(pieces, computing_intervals(self._sampler.samples))
        return [(kind, began + self._clock_offset, ended + self._clock_offset) for kind, began, ended in pieces]

    def _now(self, clock_offset: float) -> tuple[float, float]:
        clock = time.perf_counter() + clock_offset
        # CPU time does not tell how far a GPU is.
        return clock, clock if self._device.asynchronous else time.process_time()

    # -- a job with an end of its own -----------------------------------------------------------------

    def serve(self, goal: Message) -> dict[str, Any]:
        """Trains from the last checkpoint to the job's end, or until the next command.

        Args:
            goal: ``steps`` (None: no end), ``checkpoints`` (folder, or None) and ``every`` how many updates.

        Returns:
            ``why`` it is over: ``finished``, ``asked``, or what is wrong with its loss; and the fields of ``progress``.
        """
        graph = self.training.task.captured.graph
        checkpoints = CheckpointFolder(
            path=None if goal["checkpoints"] is None else Path(goal["checkpoints"]),
            every=goal["every"],
            keep=KEPT_CHECKPOINTS,
            model=graph.model,
            graph_fingerprint=graph.fingerprint,
            global_batch=self.training.batch,
        )
        with checkpoints.locked():
            return self._serve(checkpoints, math.inf if goal["steps"] is None else goal["steps"])

    def _serve(self, checkpoints: CheckpointFolder, end: float) -> dict[str, Any]:
        self._reports_progress = True
        if (found := checkpoints.find_resumable()) is not None:
            checkpoint.load(self.training.trainer, found[0])
            self.training.updates = found[1]
        saved = self.training.updates
        self.report_progress()
        self._reported = -math.inf  # the first step is reported at once: a launcher allows less time for the next ones
        while self.training.updates < end and not self._commands.pending():
            before = time.process_time()
            loss = self.training.step()
            self._slowest = max(self._slowest, time.process_time() - before)
            if not serialization.may_hold(loss):
                return {"why": f"its loss is {loss:g} after step {self.training.updates}", **self.progress()}
            if checkpoints.path is not None and self.training.updates % checkpoints.every == 0:
                checkpoints.save(self._save_shard, self.training.updates)
                saved = self.training.updates
            self.report_progress()
        if checkpoints.path is not None and saved < self.training.updates:
            checkpoints.save(self._save_shard, self.training.updates)
        return {"why": "finished" if self.training.updates >= end else "asked", **self.progress()}

    def report_progress(self) -> None:
        """Reports progress, at most every :data:`PROGRESS_SECONDS`."""
        now = time.monotonic()
        if now - self._reported >= PROGRESS_SECONDS:
            self._reported = now
            self._commands.answer("progress", **self.progress())

    def progress(self) -> dict[str, Any]:
        """Returns the progress of the training, and what it took."""
        progress = self.training.progress(self._clock_offset)
        return {**progress, "cpu": time.process_time(), "slowest": self._slowest}

    def _save_shard(self, folder: Path) -> list[dict[str, Any]]:
        return [checkpoint.save_shard(self.training.trainer, folder)]

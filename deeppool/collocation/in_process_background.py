"""A background job in the process of a rank: its training in pieces, on a stream of its own, launched by a thread.

In one process a GPU runs two jobs at once without a daemon, separates them by priority, and the foreground's stamps
show what it does now. The cost: what ends the device's context ends both jobs. A process of its own
(:mod:`deeppool.collocation.background_worker`) contains that. On a CPU the thread shares the rank's core and the
interpreter's lock at equal priority. Never run on a GPU so far.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

from deeppool.base.sharing import Sharing
from deeppool.collocation.background_worker import create_stream, load_task
from deeppool.collocation.captured_step import CapturedStep
from deeppool.collocation.piece_launcher import ForegroundState, LaunchedPiece, PieceLauncher, time_pieces
from deeppool.collocation.pieces import PIECE_SECONDS, group_layers
from deeppool.device.protocol import Device
from deeppool.errors import InvalidValueError
from deeppool.processes.managed_process import Message
from deeppool.scheduling.gate import Gate

GPU_PIECE_SECONDS = 0.0005
"""Longest piece on a GPU, which does not preempt: half of what policy ``paced`` allows in flight."""


class InProcessBackground:
    """Trains one background job in the process of a rank; used by the rank's thread, which lets it train and rest."""

    def __init__(self, setup: Message, device: Device, place: torch.device, foreground: ForegroundState) -> None:
        """Builds, splits and captures its step and measures the pieces; the foreground must not run meanwhile.

        Args:
            setup: ``job``, or ``saved_job`` and ``batch``, as for
                :class:`~deeppool.collocation.background_worker.BackgroundWorker`; ``folder`` of the run; ``sharing``.
            device: the rank's device, selected.
            place: the same as torch names it.
            foreground: reads the state of the foreground; called by the thread that launches the pieces.

        Raises:
            InvalidValueError: the optimizer reads from the GPU.
        """
        self._device, self._place = device, place
        sharing = Sharing(**setup["sharing"])
        self._task, self.batch = load_task(setup, place)
        self._stream, granted, self._kept = create_stream(sharing, device)
        self.priority = granted or "the rank's own priority"
        self._iteration = 0
        self._next_batch: tuple[torch.Tensor, ...] | None = None
        with self._stream.current():
            self._step, self.pieces = self._capture(sharing)
        self.launcher = PieceLauncher(self._stream, Gate(sharing), foreground)
        self.loss = self._first_step()
        """Loss of its first step."""
        self._began = 0.0
        self._finished = 0

    def begin(self) -> None:
        """Starts a training phase."""
        self._began, self._finished = time.perf_counter(), self.launcher.finished
        self.launcher.start(self.pieces)

    def rest(self) -> dict[str, Any]:
        """Ends the training phase; pieces in flight now do not count.

        Returns:
            ``steps`` and ``seconds`` of the phase, the last ``loss``, and the ``error`` that ended the job, or None.
        """
        steps = (self.launcher.finished - self._finished) / len(self.pieces)
        seconds = time.perf_counter() - self._began
        self.launcher.stop()
        failure = self.launcher.error
        error = None if failure is None else f"failed: {type(failure).__name__}: {failure}"
        loss = float(self._step.loss()) if failure is None else None
        return {"steps": steps, "seconds": seconds, "began": self._began, "loss": loss, "error": error}

    def _capture(self, sharing: Sharing) -> tuple[CapturedStep, tuple[LaunchedPiece, ...]]:
        captured = self._task.captured
        data = self._next_batch = self._read()
        parameters = [(name, value) for name, value in captured.program.named_parameters() if value.requires_grad]
        optimizer = self._task.training.optimizer(parameters)
        if self._device.kind == "cuda":
            check_optimizer(optimizer)

        def capture_step(cuts: Sequence[range]) -> tuple[CapturedStep, tuple[LaunchedPiece, ...]]:
            step = CapturedStep(captured, cuts, data, optimizer)
            pieces = step.capture(self._device)
            with step.undone():
                return step, time_pieces(pieces, self._stream, self._device)

        count = len(captured.graph.layers)
        groups = [range(count)]
        if sharing.in_pieces:
            _, single = capture_step([range(layer, layer + 1) for layer in range(count)])
            times = [(single[layer].expected, single[2 * count - 1 - layer].expected) for layer in range(count)]
            groups = group_layers(times, PIECE_SECONDS if self._device.kind == "cpu" else GPU_PIECE_SECONDS)
        step, (first, *others) = capture_step(groups)

        def begin() -> None:
            assert self._next_batch is not None
            step.load_batch(self._next_batch)
            self._next_batch = None
            first.work()

        return step, (LaunchedPiece(begin, first.expected, self._prepare), *others)

    def _prepare(self) -> None:
        if self._next_batch is None:
            self._next_batch = self._read()

    def _read(self) -> tuple[torch.Tensor, ...]:
        samples = self._task.samples(self._iteration, range(self.batch))
        self._iteration += 1
        return tuple(tensor.to(self._place) for tensor in samples)

    def _first_step(self) -> float:
        """Takes a step outside the launcher, which warms up; returns its loss."""
        for piece in self.pieces:
            if piece.prepare is not None:
                piece.prepare()
            self._stream.launch(piece.work)
        self._device.synchronize()
        return float(self._step.loss())


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raises InvalidValueError where a step reads from the GPU, which a CUDA graph cannot contain."""
    if not all(group.get("capturable", True) for group in optimizer.param_groups):
        raise InvalidValueError(
            f"the step of {type(optimizer).__name__} reads back from the GPU (make it with capturable=True, or give "
            "the background a process: Sharing(home='process'))"
        )

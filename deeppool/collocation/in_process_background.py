"""A background job in the process of a rank: its training in pieces, on a stream of its own, launched by a thread.

One process per GPU is what lets a GPU run two jobs at once without a daemon, tells them apart by priority, and lets the
foreground's stamps say what it does now. The price: what ends the device's context ends both jobs. A process of its own
(:mod:`deeppool.collocation.background_worker`) contains that. On a CPU the thread shares the rank's core and the interpreter's lock
as an equal. Never run on a GPU so far.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

from deeppool.base.sharing import Sharing
from deeppool.collocation.background_placement import training_problem
from deeppool.collocation.background_worker import granted_stream, work_of
from deeppool.collocation.captured_step import CapturedStep
from deeppool.collocation.piece_launcher import LaunchedPiece, Look, PieceLauncher, timed
from deeppool.collocation.pieces import PIECE_SECONDS, cut
from deeppool.device.common import Device
from deeppool.errors import InvalidValueError
from deeppool.processes.managed_process import Message
from deeppool.scheduling.gate import Gate
from deeppool.training.training_job import Training

GPU_PIECE_SECONDS = 0.0005
"""Of a piece on a GPU, which ends what it has begun: half of what the pacing of ``paced`` lets be in flight."""


class InProcessBackground:
    """One background job; belongs to the thread of the rank, which lets it train and rest."""

    def __init__(self, setup: Message, device: Device, place: torch.device, look: Look) -> None:
        """Builds, cuts and captures its step, and measures the pieces: not beside a foreground.

        Args:
            setup: ``job``, or ``own`` and ``batch``, as for a guest; the ``folder`` of the run; ``sharing``.
            device: of the rank, selected.
            place: the rank's own.
            look: at the foreground; for the lane's thread.

        Raises:
            InvalidValueError: the training is more than what fits into pieces.
        """
        self._device, self._place = device, place
        sharing = Sharing(**setup["sharing"])
        self._work, self.batch = work_of(setup, place)
        check_training(self._work.training)
        self._stream, granted, self._kept = granted_stream(sharing, device)
        self.priority = granted or "the rank's own priority"
        self._iteration = 0
        self._next: tuple[torch.Tensor, ...] | None = None
        with self._stream.current():
            self._step, self.pieces = self._captured(sharing)
        self.lane = PieceLauncher(self._stream, Gate(sharing), look)
        self.loss = self._first_step()
        """Of its first step."""
        self._began = 0.0
        self._finished = 0

    @property
    def steps(self) -> float:
        """Done so far; of the one under way, the share of its pieces."""
        return self.lane.finished / len(self.pieces)

    def begin(self) -> None:
        """Trains from now on."""
        self._began, self._finished = time.perf_counter(), self.lane.finished
        self.lane.start(self.pieces)

    def rest(self) -> dict[str, Any]:
        """Ends what :meth:`begin` began; what is in flight then does not count.

        Returns:
            ``steps`` and ``seconds`` since then, the last ``loss``, and the ``error`` that ended it, or None.
        """
        steps = (self.lane.finished - self._finished) / len(self.pieces)
        seconds = time.perf_counter() - self._began
        self.lane.stop()
        error = None if self.lane.error is None else f"failed: {type(self.lane.error).__name__}: {self.lane.error}"
        loss = float(self._step.loss()) if error is None else None
        return {"steps": steps, "seconds": seconds, "began": self._began, "loss": loss, "error": error}

    def _captured(self, sharing: Sharing) -> tuple[CapturedStep, tuple[LaunchedPiece, ...]]:
        captured = self._work.captured
        data = self._next = self._read()
        parameters = [(name, value) for name, value in captured.program.named_parameters() if value.requires_grad]
        optimizer = self._work.training.optimizer(parameters)
        if self._device.kind == "cuda":
            check_optimizer(optimizer)

        def step_of(cuts: Sequence[range]) -> tuple[CapturedStep, tuple[LaunchedPiece, ...]]:
            step = CapturedStep(captured, cuts, data, optimizer)
            works = step.capture(self._device)
            with step.tried():
                return step, timed(works, self._stream, self._device)

        count = len(captured.graph.layers)
        if not sharing.in_pieces:
            return self._fed(*step_of([range(count)]))
        _, single = step_of([range(layer, layer + 1) for layer in range(count)])
        times = [(single[layer].expected, single[2 * count - 1 - layer].expected) for layer in range(count)]
        limit = PIECE_SECONDS if self._device.kind == "cpu" else GPU_PIECE_SECONDS
        return self._fed(*step_of(cut(times, limit)))

    def _fed(
        self, step: CapturedStep, pieces: Sequence[LaunchedPiece]
    ) -> tuple[CapturedStep, tuple[LaunchedPiece, ...]]:
        """A step begins with samples that nobody has trained on yet."""
        first, *others = pieces

        def begin() -> None:
            assert self._next is not None
            step.feed(self._next)
            self._next = None
            first.work()

        return step, (LaunchedPiece(begin, first.expected, self._prepare), *others)

    def _prepare(self) -> None:
        if self._next is None:
            self._next = self._read()

    def _read(self) -> tuple[torch.Tensor, ...]:
        samples = self._work.samples(self._iteration, range(self.batch))
        self._iteration += 1
        return tuple(tensor.to(self._place) for tensor in samples)

    def _first_step(self) -> float:
        """Warm before it is measured."""
        for piece in self.pieces:
            if piece.prepare is not None:
                piece.prepare()
            self._stream.launch(piece.work)
        self._device.synchronize()
        return float(self._step.loss())


def check_training(training: Training) -> None:
    """Raises InvalidValueError where a rule of updates does not fit into pieces that a device repeats by itself."""
    problem = training_problem(training)
    if problem is not None:
        raise InvalidValueError(
            f"a background in a thread of the rank cannot have {problem} (give it a process: Sharing(home='process'))"
        )


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raises InvalidValueError where a step reads something back from the GPU: a graph cannot."""
    if not all(group.get("capturable", True) for group in optimizer.param_groups):
        raise InvalidValueError(
            f"the step of {type(optimizer).__name__} reads back from the GPU (make it with capturable=True, or give "
            "the background a process: Sharing(home='process'))"
        )

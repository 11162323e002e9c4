"""Delays each piece of a background until its gate, under the foreground's limits, admits it.

A step of the background is a list of pieces: forward, backward and update of each part of its model. On a CPU one is in
flight at a time and holds the device for its CPU time. A GPU runs behind its host: pieces are in flight until the
device has passed their ends, and the trainer's spans time them.

A background in a process of its own waits in one of two ways. At the lowest priority it polls: that delays no other
process, and a core that sleeps in its gaps would make the foreground slower than one that is kept active. At any other
priority each poll takes the core from the foreground (two thousand a second made it 12 to 31 % slower), so it sleeps,
longer each time, until the foreground notifies it of new limits or of a wait of its own.
"""

import time
from collections import deque
from collections.abc import Callable

from deeppool.base.sharing import Sharing
from deeppool.base.timeline import SpanKind
from deeppool.execution.span_recorder import RecordedSpan
from deeppool.execution.trainer import Trainer
from deeppool.scheduling.background_limits import BackgroundLimits, Operator
from deeppool.scheduling.gate import Gate

MIN_SLEEP, MAX_SLEEP = 0.0005, 0.05
"""Seconds of the first sleep, a quarter of a piece, and of the last; each is twice as long as the one before."""
SMOOTHING = 0.25
"""Weight of a piece's latest time in its expected time."""
MAX_QUEUED_SECONDS = 0.02
"""Expected seconds of pieces in flight beyond the first two, whatever the gate admits. They keep a device as busy as
the thousand launches that a driver's queue holds, which would run for seconds after the background was stopped.
"""

ForegroundState = Callable[[], tuple[BackgroundLimits, Operator | None]]
"""Returns the foreground's limits for the background, and the operator that it runs now."""


class PieceLauncher:
    """Watches a background's trainer and delays each piece until its gate admits it."""

    def __init__(
        self,
        sharing: Sharing,
        foreground: ForegroundState,
        trainer: Trainer,
        *,
        on_finished: Callable[[float], object] = lambda seconds: None,
        must_stop: Callable[[], bool] = lambda: False,
        wait: Callable[[float], bool] | None = None,
        clock: Callable[[], float] | None = None,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        """Starts without pieces in flight.

        Args:
            sharing: the mechanisms of the gate.
            foreground: reads the state of the foreground before each piece; must be fast.
            trainer: runs the pieces.
            on_finished: called for each piece that the device has passed, with the seconds for which it held it.
            must_stop: polled while a piece is delayed; True admits it, as the background stops after this step.
            wait: waits for some seconds or until the foreground notifies, and returns whether it did. Default: a
                delayed piece polls, as is right at the lowest priority.
            clock: current time in seconds; that of the device's clock unless given.
            used: CPU seconds of this thread.
        """
        self._gate = Gate(sharing)
        self._foreground, self._on_finished = foreground, on_finished
        self._trainer, self._device = trainer, trainer.device
        self._must_stop, self._wait = must_stop, wait
        self._clock, self._used = clock or self._device.clock.now, used
        self._in_flight: deque[RecordedSpan] = deque()
        """Pieces that were launched and that the device, as far as is known, has not passed."""
        self._expected: dict[Operator, float] = {}
        self._piece: Operator = ("forward", 0)
        self._before = 0.0

    @property
    def in_flight(self) -> int:
        """Pieces that were launched and that the device has not passed, as far as is known."""
        return len(self._in_flight)

    def begin(self, kind: SpanKind, stage: int) -> None:
        """Returns when the piece may begin."""
        self._piece = kind, stage
        self._collect()
        expected = self._expected.get(self._piece, 0.0)
        now = self._clock()
        seconds = MIN_SLEEP
        while not self._admits(now, expected):
            if self._must_stop():
                break
            if self._wait is not None:
                seconds = MIN_SLEEP if self._wait(seconds) else min(2 * seconds, MAX_SLEEP)
            self._collect()
            now = self._clock()
        self._gate.launched(expected)
        self._before = self._used()

    def _admits(self, now: float, expected: float) -> bool:
        limits, doing = self._foreground()
        queued = self._gate.in_flight
        return self._gate.admits(now, limits, doing, expected) and (len(queued) < 2 or sum(queued) < MAX_QUEUED_SECONDS)

    def end(self) -> None:
        """Records that the piece has ended, or was launched."""
        if self._device.asynchronous:
            self._in_flight.append(self._trainer.recorded[-1])
        else:
            self._finish(self._piece, self._used() - self._before)

    def _collect(self) -> None:
        """Finishes the pieces that the device has passed, without waiting for it."""
        while self._in_flight and self._device.passed(self._in_flight[0].end):
            piece = self._in_flight.popleft()
            self._finish((piece.kind, piece.stage), self._device.seconds(piece.start, piece.end))

    def _finish(self, piece: Operator, seconds: float) -> None:
        self._gate.finished(seconds)
        known = self._expected.get(piece, seconds)
        self._expected[piece] = known + SMOOTHING * (seconds - known)
        self._on_finished(seconds)

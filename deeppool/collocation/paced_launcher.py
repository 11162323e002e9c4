"""Delays each piece of a background until its gate, under the foreground's limits, admits it.

A step of the background is a list of pieces. On a CPU one is in flight at a time and holds the device for its CPU time.
A GPU runs behind its host: pieces are in flight until the device has passed their stamps, which also time them.

A delayed piece waits in one of two ways. At the lowest priority it polls: that delays no other process, and a core that
sleeps in its gaps would make the foreground slower than one that is kept active. At any other priority each poll takes
the core from the foreground (two thousand a second made it 12 to 31 % slower), so it sleeps, longer each time, until
the foreground notifies it of new limits or of a wait of its own.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from deeppool.base.sharing import Sharing
from deeppool.base.timeline import SpanKind
from deeppool.device.protocol import Device
from deeppool.processes.shared_page import SharedPage
from deeppool.scheduling.background_limits import BackgroundLimits, Operator
from deeppool.scheduling.gate import Gate

MIN_SLEEP, MAX_SLEEP = 0.0005, 0.05
"""Seconds of the first sleep, a quarter of a piece, and of the last; each is twice as long as the one before."""
SMOOTHING = 0.25
"""Weight of a piece's latest time in its expected time."""


class PacedLauncher:
    """Watches a background's trainer and delays each piece until its gate admits it."""

    def __init__(
        self,
        sharing: Sharing,
        page: SharedPage,
        must_stop: Callable[[], bool] = lambda: False,
        *,
        polls: bool,
        device: Device | None = None,
        clock: Callable[[], float] = time.perf_counter,
        used: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], bool] | None = None,
    ) -> None:
        """Starts without pieces in flight.

        Args:
            sharing: the mechanisms of the gate.
            page: shared with the rank beside which it runs.
            must_stop: polled while a piece is delayed; True admits it, as the background stops after this step.
            polls: whether to poll rather than sleep while a piece is delayed, as is right at the lowest priority.
            device: a device that runs behind its host; None: a piece is done when its launch returns.
            clock: current time in seconds.
            used: CPU seconds of this thread.
            sleep: waits for some seconds or until the foreground notifies, and returns whether it did. Default: the
                page's.
        """
        self._gate = Gate(sharing)
        self._page, self._must_stop, self._polls = page, must_stop, polls
        self._device = device
        self._in_flight: deque[tuple[Operator, Any, Any]] = deque()
        """Pieces that the device has not passed, with their stamps."""
        self._clock, self._used, self._sleep = clock, used, sleep or page.wait
        self._expected: dict[Operator, float] = {}
        self._piece: Operator = ("forward", 0)
        self._before: Any = 0.0

    def begin(self, kind: SpanKind, stage: int) -> None:
        """Returns when the piece may begin."""
        self._piece = kind, stage
        expected = self._expected.get(self._piece, 0.0)
        asked = now = self._clock()
        seconds = MIN_SLEEP
        self._collect()
        while not self._gate.admits(now, BackgroundLimits(*self._page.limits), self._page.doing, expected):
            if self._must_stop():
                break
            if not self._polls:
                seconds = MIN_SLEEP if self._sleep(seconds) else min(2 * seconds, MAX_SLEEP)
            self._collect()
            now = self._clock()
        self._page.count(held=now - asked)
        self._gate.launched(now, expected)
        self._before = self._used() if self._device is None else self._device.stamp()

    def end(self) -> None:
        """Records that the piece has ended, or was launched."""
        if self._device is None:
            self._finish(self._piece, self._used() - self._before)
        else:
            self._in_flight.append((self._piece, self._before, self._device.stamp()))

    def _collect(self) -> None:
        """Counts the pieces that the device has passed, without waiting for it."""
        while self._in_flight and self._device is not None and self._device.passed(self._in_flight[0][2]):
            piece, start, end = self._in_flight.popleft()
            self._finish(piece, self._device.seconds(start, end))

    def _finish(self, piece: Operator, seconds: float) -> None:
        self._gate.finished(self._clock(), seconds)
        known = self._expected.get(piece, seconds)
        self._expected[piece] = known + SMOOTHING * (seconds - known)
        self._page.count(steps=piece[0] == "update", pieces=1, busy=seconds)

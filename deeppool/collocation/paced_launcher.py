"""Holds a background back before each of its pieces, as its gate and the foreground's orders say.

A step of the background is a list of pieces. On a CPU one is in flight at a time, and what it uses of the core is what
the device is held for. A GPU works behind its host: pieces are in flight until it has passed their stamps, and it says
itself how long each held it.

While it is held back it waits in one of two ways. At the lowest priority it looks again and again: nobody is kept from
the core, and a core that sleeps in its gaps would make the foreground slower than one that is kept awake. At any other
priority each look takes the core from the foreground (two thousand a second made it 12 to 31 % slower), so it sleeps,
longer each time, until the foreground rings: it has other orders, or waits itself.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from deeppool.base.sharing import Sharing
from deeppool.base.timeline import SpanKind
from deeppool.device.common import Device
from deeppool.processes.shared_page import SharedPage
from deeppool.scheduling.background_limits import BackgroundLimits, Operator
from deeppool.scheduling.gate import Gate

NAP, LONGEST_NAP = 0.0005, 0.05
"""Seconds: the first one, a quarter of a piece, and the last; each is twice as long as the one before."""
LATEST = 0.25
"""Weight of the latest time of a piece in what is expected of the next one."""


class PacedLauncher:
    """A watcher of a background's trainer that lets each part begin when its gate admits it."""

    def __init__(
        self,
        sharing: Sharing,
        board: SharedPage,
        hurries: Callable[[], bool] = lambda: False,
        *,
        spins: bool,
        device: Device | None = None,
        clock: Callable[[], float] = time.perf_counter,
        used: Callable[[], float] = time.thread_time,
        nap: Callable[[float], bool] | None = None,
    ) -> None:
        """Nothing has run yet.

        Args:
            sharing: the mechanisms.
            board: of the rank beside which it runs.
            hurries: asked again and again while it is held back; True lets it through: it was told to stop, and does
                so after this step.
            spins: whether it keeps the core awake while it waits, as it may at the lowest priority.
            device: that works behind its host; None: a piece is done when it has been launched.
            clock: seconds.
            used: seconds that this thread has had a core.
            nap: waits for so many seconds or until the foreground rings, and says whether it did; the board's unless
                given.
        """
        self._gate = Gate(sharing)
        self._board, self._hurries, self._spins = board, hurries, spins
        self._device = device
        self._in_flight: deque[tuple[Operator, Any, Any]] = deque()
        """Pieces that a device has not passed, with their stamps."""
        self._clock, self._used, self._nap = clock, used, nap or board.wait
        self._expected: dict[Operator, float] = {}
        self._piece: Operator = ("forward", 0)
        self._before: Any = 0.0

    def begin(self, kind: SpanKind, stage: int) -> None:
        """Returns when the part may begin."""
        self._piece = kind, stage
        expected = self._expected.get(self._piece, 0.0)
        asked = now = self._clock()
        nap = NAP
        self._collect()
        while not self._gate.admits(now, BackgroundLimits(*self._board.orders), self._board.doing, expected):
            if self._hurries():
                break
            if not self._spins:
                nap = NAP if self._nap(nap) else min(2 * nap, LONGEST_NAP)
            self._collect()
            now = self._clock()
        self._board.count(held=now - asked)
        self._gate.launched(now, expected)
        self._before = self._used() if self._device is None else self._device.stamp()

    def end(self) -> None:
        """The part has ended, or was launched."""
        if self._device is None:
            self._finish(self._piece, self._used() - self._before)
        else:
            self._in_flight.append((self._piece, self._before, self._device.stamp()))

    def _collect(self) -> None:
        """Takes note of what a device has passed; never waits for it."""
        while self._in_flight and self._device is not None and self._device.passed(self._in_flight[0][2]):
            piece, start, end = self._in_flight.popleft()
            self._finish(piece, self._device.seconds(start, end))

    def _finish(self, piece: Operator, seconds: float) -> None:
        self._gate.finished(self._clock(), seconds)
        known = self._expected.get(piece, seconds)
        self._expected[piece] = known + LATEST * (seconds - known)
        self._board.count(steps=piece[0] == "update", pieces=1, busy=seconds)

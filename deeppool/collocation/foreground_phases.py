"""What a foreground does now, by its device: on a GPU a host is ahead of what it has launched.

Each part of an iteration is enclosed by two stamps in the stream that the foreground gives its work to. A part is under
way when the device has passed the first and not the second; nobody ever waits for it.

    host      │ forward 0 │ forward 1 │ backward 1 │ …
    device          ┊─────── forward 0 ───────┊── forward 1 ──┊ …
                    ▲ first stamp             ▲ second stamp
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deeppool.base.timeline import COMPUTING, SpanKind
from deeppool.device.common import Device
from deeppool.scheduling.background_limits import Operator

POLL_SECONDS = 2e-5
"""Between two looks at a device that is waited for."""


@dataclass(slots=True)
class _Part:
    operator: Operator
    start: Any
    end: Any = None


class ForegroundPhases:
    """A watcher of a trainer, read by another thread of its process."""

    def __init__(self, device: Device) -> None:
        """Nothing is under way.

        Args:
            device: that the trainer's thread has selected; its current stream there is the foreground's.
        """
        self._device = device
        self._open: deque[_Part] = deque()
        """Begun and, as far as is known, not passed by the device; in order."""
        self._times: dict[Operator, float] = defaultdict(float)
        self._busy = 0.0
        # A part is begun, ended and looked at by two threads; each holds this for microseconds.
        self._changing = threading.Lock()

    def begin(self, kind: SpanKind, stage: int) -> None:
        """A part is about to be given to the device."""
        part = _Part((kind, stage), self._device.stamp())
        with self._changing:
            self._open.append(part)

    def end(self) -> None:
        """All of it has been given to the device."""
        stamp = self._device.stamp()
        with self._changing:
            self._open[-1].end = stamp

    @property
    def doing(self) -> Operator | None:
        """The part that the device is in; None: in none."""
        with self._changing:
            self._collect()
            if self._open and self._device.passed(self._open[0].start):
                return self._open[0].operator
            return None

    def times(self) -> Mapping[Operator, float]:
        """Seconds that the device was in each part since the last call; returns when all of them are over."""
        self._settle()
        with self._changing:
            found, self._times = self._times, defaultdict(float)
        return found

    def busy(self) -> float:
        """Seconds for which the device has computed for the foreground so far, waits for other ranks left out."""
        self._settle()
        return self._busy

    def _settle(self) -> None:
        while True:
            with self._changing:
                self._collect()
                if not self._open:
                    return
            time.sleep(POLL_SECONDS)

    def _collect(self) -> None:
        """Takes note of the parts that the device has passed."""
        while self._open and self._open[0].end is not None and self._device.passed(self._open[0].end):
            part = self._open.popleft()
            seconds = self._device.seconds(part.start, part.end)
            self._times[part.operator] += seconds
            if part.operator[0] in COMPUTING:
                self._busy += seconds

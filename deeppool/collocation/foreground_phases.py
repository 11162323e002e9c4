"""Tracks which operator a foreground's device runs now: on a GPU the host is ahead of what it has launched.

Each operator of an iteration is enclosed by two stamps in the foreground's stream. It is running when the device has
passed the first and not the second; reading that never waits for the device.

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
from deeppool.device.protocol import Device
from deeppool.scheduling.background_limits import Operator

POLL_SECONDS = 2e-5
"""Interval between two polls of a device that is waited for."""


@dataclass(slots=True)
class _Phase:
    operator: Operator
    start: Any
    end: Any = None


class ForegroundPhases:
    """Watches a trainer and times its operators on the device; read by another thread of the process."""

    def __init__(self, device: Device) -> None:
        """Tracks nothing yet.

        Args:
            device: selected by the trainer's thread, whose current stream there is the foreground's.
        """
        self._device = device
        self._open: deque[_Phase] = deque()
        """Phases begun and, as far as is known, not passed by the device; in order."""
        self._times: dict[Operator, float] = defaultdict(float)
        self._busy = 0.0
        # Two threads begin, end and read phases; each holds this for microseconds.
        self._lock = threading.Lock()

    def begin(self, kind: SpanKind, stage: int) -> None:
        """Records that an operator is about to be launched."""
        phase = _Phase((kind, stage), self._device.stamp())
        with self._lock:
            self._open.append(phase)

    def end(self) -> None:
        """Records that all of the operator has been launched."""
        stamp = self._device.stamp()
        with self._lock:
            self._open[-1].end = stamp

    @property
    def doing(self) -> Operator | None:
        """Operator that the device runs now, or None."""
        with self._lock:
            self._collect()
            if self._open and self._device.passed(self._open[0].start):
                return self._open[0].operator
            return None

    def times(self) -> Mapping[Operator, float]:
        """Returns the device seconds of each operator since the last call; waits until all have ended."""
        self._wait()
        with self._lock:
            found, self._times = self._times, defaultdict(float)
        return found

    def busy(self) -> float:
        """Returns the device seconds of the foreground so far, without waits for other ranks."""
        self._wait()
        return self._busy

    def _wait(self) -> None:
        while True:
            with self._lock:
                self._collect()
                if not self._open:
                    return
            time.sleep(POLL_SECONDS)

    def _collect(self) -> None:
        """Adds the times of the phases that the device has passed."""
        while self._open and self._open[0].end is not None and self._device.passed(self._open[0].end):
            phase = self._open.popleft()
            seconds = self._device.seconds(phase.start, phase.end)
            self._times[phase.operator] += seconds
            if phase.operator[0] in COMPUTING:
                self._busy += seconds

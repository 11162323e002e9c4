"""Tracks which operator a foreground's device runs now: on a GPU the host is ahead of what it has launched.

Each operator of an iteration is enclosed by two stamps in the foreground's stream. It is running when the device has
passed the first and not the second; reading that never waits for the device. Times are read an iteration late: the
device computes the one that was just launched, and the host need not wait for it.

    host      │ forward 0 │ forward 1 │ backward 1 │ …
    device          ┊─────── forward 0 ───────┊── forward 1 ──┊ …
                    ▲ first stamp             ▲ second stamp
"""

import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from deeppool.base.timeline import SpanKind
from deeppool.device.protocol import Device
from deeppool.execution.foreground_control import IterationTimes
from deeppool.scheduling.background_limits import Operator


@dataclass(slots=True)
class _Phase:
    operator: Operator
    start: Any
    end: Any = None


@dataclass(slots=True)
class _Iteration:
    start: Any
    end: Any = None
    times: dict[Operator, float] = field(default_factory=lambda: defaultdict(float))


class ForegroundPhases:
    """Watches a trainer and times its operators on the device; read by another thread of the process."""

    def __init__(self, device: Device) -> None:
        """Tracks nothing yet.

        Args:
            device: selected by the trainer's thread, whose current stream there is the foreground's.
        """
        self._device = device
        self._open: deque[tuple[_Phase, _Iteration]] = deque()
        """Phases begun and, as far as is known, not passed by the device; in order."""
        self._current = _Iteration(None)
        self._ended: deque[_Iteration] = deque()
        """Iterations launched as a whole, not read yet."""
        # Two threads begin, end and read phases; each holds this for microseconds.
        self._lock = threading.Lock()

    def begin(self, kind: SpanKind, stage: int) -> None:
        """Records that an operator is about to be launched."""
        phase = _Phase((kind, stage), self._device.stamp())
        with self._lock:
            self._open.append((phase, self._current))

    def end(self) -> None:
        """Records that all of the operator has been launched."""
        stamp = self._device.stamp()
        with self._lock:
            self._open[-1][0].end = stamp

    @property
    def doing(self) -> Operator | None:
        """Operator that the device runs now, or None."""
        self._collect()
        first = self._first()
        return first[0].operator if first is not None and self._device.passed(first[0].start) else None

    def start(self) -> None:
        """Begins the first of some iterations that are timed; those before are forgotten."""
        self._ended.clear()
        self._current = _Iteration(self._device.stamp())

    def lap(self) -> IterationTimes | None:
        """Ends an iteration, all of it launched, and begins the next one.

        Returns:
            Times of the iteration before the one that ends, once the device has computed it; None: it was the first.
        """
        self._current.end = self._device.stamp()
        self._ended.append(self._current)
        self._current = _Iteration(self._current.end)
        return self._read() if len(self._ended) > 1 else None

    def finish(self) -> IterationTimes | None:
        """Returns the times of the last iteration that ended, once the device has computed it; None: there is none."""
        return self._read() if self._ended else None

    def _read(self) -> IterationTimes:
        found = self._ended.popleft()
        self._device.await_stamp(found.end)
        self._collect()
        return self._device.seconds(found.start, found.end), found.times

    def _collect(self) -> None:
        """Adds the times of the phases that the device has passed; it is never asked while the lock is held."""
        while (first := self._first()) is not None:
            phase, iteration = first
            if phase.end is None or not self._device.passed(phase.end):
                return
            seconds = self._device.seconds(phase.start, phase.end)
            with self._lock:
                # The other thread may have added it meanwhile.
                if self._open and self._open[0][0] is phase:
                    self._open.popleft()
                    iteration.times[phase.operator] += seconds

    def _first(self) -> tuple[_Phase, _Iteration] | None:
        with self._lock:
            return self._open[0] if self._open else None

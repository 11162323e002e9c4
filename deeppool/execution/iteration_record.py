"""Record of a rank's iterations in a row: the times that its governor, and the record of the run, are made of.

An iteration lies between two marks of the trainer's clock, in the stream that computes it, and has the trainer's spans.
On a GPU the host is ahead of what it has launched, so times are read later.
"""

import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from deeppool.execution.span_recorder import RawSpan, RecordedSpan
from deeppool.execution.trainer import Trainer
from deeppool.scheduling.background_limits import Operator

IterationTimes = tuple[float, Mapping[Operator, float]]
"""Seconds of an iteration, and of each of its operators, on the device."""


class IterationRecord:
    """Iterations of a trainer in a row."""

    def __init__(self, trainer: Trainer) -> None:
        """Begins the first one."""
        self._trainer = trainer
        self._launched = time.perf_counter()
        self._marks = [self._mark()]
        self._recorded: list[list[RecordedSpan]] = []
        self._read = 0
        """Iterations whose times :meth:`next_times` has returned."""

    def lap(self) -> float:
        """Ends an iteration, all of it launched, and begins the next one; returns the host's seconds of it."""
        before, self._launched = self._launched, time.perf_counter()
        self._marks.append(self._mark())
        self._recorded.append(self._trainer.recorded)
        return self._launched - before

    def next_times(self, *, last: bool = False) -> IterationTimes | None:
        """Returns the times of the earliest iteration whose times it has not returned, or None; waits for its end.

        Args:
            last: whether the last iteration counts, too, on a device that runs behind its host. To wait for it leaves
                the device idle while the host launches the next one.
        """
        number, device = self._read, self._trainer.device
        if number >= len(self._recorded) - (device.asynchronous and not last):
            return None
        self._read += 1
        start, end = self._marks[number : number + 2]
        device.await_stamp(end)
        return device.seconds(start, end), self._trainer.operator_seconds(self._recorded[number])

    def seconds(self) -> list[float]:
        """Returns the seconds of all iterations; the device has computed them."""
        return [self._trainer.device.seconds(start, end) for start, end in pairwise(self._marks)]

    def spans(self) -> list[list[RawSpan]]:
        """Returns the spans of all iterations; waits until the device has computed them."""
        return [self._trainer.timed(recorded) for recorded in self._recorded]

    def _mark(self) -> Any:
        return self._trainer.clock.now() if self._trainer.device.asynchronous else self._launched

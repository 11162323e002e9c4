"""Spans of a rank's work: when the host launched each, and when the device computed it.

A span is stamped once, in the stream that computes it. Other threads read what runs now; the times of spans are read
once the device has computed them.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from deeppool.base.timeline import SpanKind
from deeppool.device.protocol import Device
from deeppool.execution.emulated_rank import EmulatedCommunicator
from deeppool.execution.span_clock import SpanClock
from deeppool.scheduling.background_limits import Operator
from deeppool.training.step import Monitor

RawSpan = tuple[SpanKind, int, str, float, float]
"""Kind, stage, operation, and start and end on the clock of ``time.perf_counter``."""


@dataclass(slots=True)
class RecordedSpan:
    """A span whose times are read once the device has computed it."""

    kind: SpanKind
    stage: int
    name: str
    start: Any
    end: Any = None
    """Marks of a :class:`SpanClock`; the end is None until all of it is launched."""
    met: float = 0.0
    """When the last rank had started it (``time.perf_counter``); 0 if unknown."""
    launched: float = 0.0
    """Start of its launch (``time.perf_counter``)."""


class Watcher(Protocol):
    """Protocol of an observer of the parts of an iteration; in a background it may delay them."""

    def begin(self, kind: SpanKind, stage: int) -> None:
        """Marks the start of a part; may delay it."""

    def end(self) -> None:
        """Marks the end of the part."""


class SpanRecorder(Monitor):
    """Records the spans of one rank's training steps."""

    def __init__(self, device: Device, stage_of: Sequence[int], replay: EmulatedCommunicator | None) -> None:
        """Starts without spans.

        Args:
            device: computes the spans.
            stage_of: per part of the step its stage, under which its spans are recorded.
            replay: marks the spans of an emulated rank, which may wait in them; None: the ranks exist, and synchronise
                by their messages.
        """
        self.device, self.clock = device, SpanClock(device)
        self._stage_of, self._replay = stage_of, replay
        self.recorded: list[RecordedSpan] = []
        """Spans of the last iteration."""
        self.doing: tuple[str, int, float] | None = None
        """Kind of work, stage, and start as in a span; for another thread to read."""
        self._unpassed: deque[RecordedSpan] = deque(maxlen=0)
        """Spans whose launch has begun and that the device, as far as is known, has not passed, in order.

        None are kept before :meth:`follow_device`."""
        self._lock = threading.Lock()
        self.watcher: Watcher | None = None

    @contextmanager
    def span(self, kind: SpanKind, part: int, name: str) -> Iterator[None]:
        """Encloses some work of an iteration in a part, and records it under the part's stage."""
        stage = self._stage_of[part]
        if self._replay is not None:
            self._replay.enter(kind, stage)
        if self.watcher is not None:
            self.watcher.begin(kind, stage)
        span = RecordedSpan(kind, stage, name, self.clock.now(), launched=time.perf_counter())
        self.doing = (kind, stage, span.launched)
        with self._lock:
            self._unpassed.append(span)
        with self.device.named_range(kind if name == kind else f"{kind} {name}"):
            yield
        if self._replay is not None:
            span.met = self._replay.leave(kind, stage)
        self.doing, span.end = None, self.clock.now()
        self.recorded.append(span)
        if self.watcher is not None:
            self.watcher.end()

    def follow_device(self) -> None:
        """Keeps spans for :meth:`unfinished` from now on, whose calls alone drop those that the device has passed."""
        # A device that computes at once has passed all but the last one.
        self._unpassed = deque(maxlen=None if self.device.asynchronous else 1)

    def unfinished(self) -> RecordedSpan | None:
        """Returns the first span that the device has not passed, which may still be launched; for other threads.

        Before :meth:`follow_device` there is none.
        """
        while True:
            with self._lock:
                first = self._unpassed[0] if self._unpassed else None
            # Without the lock: a thread in virtual time may wait for its turn here.
            if first is None or first.end is None or not self.device.passed(first.end):
                return first
            with self._lock:
                # Another reader may have dropped it meanwhile.
                if self._unpassed and self._unpassed[0] is first:
                    self._unpassed.popleft()

    @property
    def running(self) -> Operator | None:
        """Operator that the device runs now, or None; for other threads, after :meth:`follow_device`."""
        first = self.unfinished()
        return (first.kind, first.stage) if first is not None and self.device.passed(first.start) else None

    def timed(self, recorded: Sequence[RecordedSpan]) -> list[RawSpan]:
        """Returns spans with their times on the host's clock; waits until the device has computed them."""
        self.device.synchronize_stream()
        return [
            (
                span.kind,
                span.stage,
                span.name,
                max(self.clock.seconds(span.start), span.met),
                self.clock.seconds(span.end),
            )
            for span in recorded
        ]

    def operator_seconds(self, recorded: Sequence[RecordedSpan]) -> dict[Operator, float]:
        """Returns the seconds of each operator in some spans; waits until the device has computed them."""
        found: dict[Operator, float] = defaultdict(float)
        for span in recorded:
            self.device.await_stamp(span.end)
            # The difference of two times of the clock is less exact: a GPU's events have 24 bits for the time between.
            seconds = self.device.seconds(span.start, span.end)
            found[span.kind, span.stage] += min(seconds, self.clock.seconds(span.end) - span.met)
        return found

    @property
    def spans(self) -> list[RawSpan]:
        """Spans of the last iteration; waits until the device has computed them."""
        return self.timed(self.recorded)

    def reading(self, part: int) -> None:
        """Marks the start of reading samples, for another thread to see."""
        self.doing = ("data", self._stage_of[part], time.perf_counter())

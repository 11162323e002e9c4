"""Finds when a process had its core, from samples of its CPU time.

A piece of a background's step tells when it began and ended. Between the two, the operating system may have run the
foreground for most of the time. A timer of CPU time (``ITIMER_PROF``) therefore samples the clock and the CPU time
after every few milliseconds that the process computes. The CPU time between two samples is put directly before the
second one, so that a bar is wrong by at most the CPU time between two samples.
"""

import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

SAMPLE_SECONDS = 0.001
"""CPU time between two samples; Linux makes it at least a tick of its scheduler, mostly 4 ms."""
SHORTEST_PAUSE = 0.0005
"""Shorter times without the core are not shown."""
KEPT_SAMPLES = 5000
"""Samples that are kept, of 20 s of CPU time at ticks of 4 ms."""

Piece = tuple[str, float, float]
"""Kind of work, start and end, in seconds."""
Interval = tuple[float, float]
"""Start and end, in seconds."""


class CpuSampler:
    """Samples the CPU time of this process while it computes."""

    def __init__(self) -> None:
        """Starts without samples."""
        self.samples: deque[tuple[float, float]] = deque(maxlen=KEPT_SAMPLES)
        """Times of the clock (``time.perf_counter``) and CPU seconds of the process."""

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Samples within the block, which the main thread must enter; samples of before are forgotten."""
        self.samples.clear()
        self._sample()
        before = signal.signal(signal.SIGPROF, self._sample)
        # A system call in a loader's library goes on after the signal.
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, before)
            self._sample()

    def _sample(self, *_: object) -> None:
        self.samples.append((time.perf_counter(), time.process_time()))


def computing_intervals(samples: Sequence[tuple[float, float]]) -> list[Interval]:
    """Returns when a process had its core.

    Args:
        samples: times of a clock, and CPU seconds of the process by then.
    """
    found: list[Interval] = []
    for (since, before), (until, after) in pairwise(samples):
        start = max(since, until - (after - before))
        if start - since < SHORTEST_PAUSE:
            start = since
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], until
        elif start < until:
            found.append((start, until))
    return found


def intersections(pieces: Iterable[Piece], computing: Sequence[Interval]) -> list[Piece]:
    """Returns the parts of pieces in which the process computed.

    Args:
        pieces: pieces in order of time.
        computing: intervals in order of time.
    """
    found, first = [], 0
    for kind, began, ended in pieces:
        while first < len(computing) and computing[first][1] <= began:
            first += 1
        for start, end in computing[first:]:
            if start >= ended:
                break
            found.append((kind, max(began, start), min(ended, end)))
    return found

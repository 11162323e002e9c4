"""Delay between the moment a thread may run and the moment it runs, as the kernel counts it."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Delay(NamedTuple):
    """What the threads of a process waited for a core in some time."""

    seconds: float
    """Seconds in which a thread could run and did not, summed over threads."""
    times: int
    """How often a thread got a core."""


class RunDelayMeter:
    """Reads ``/proc/self/task/*/schedstat``: Linux counts there the run delay of each thread, in nanoseconds.

    A thread's delay counts from when its wait ends, because data has arrived or another thread has notified it, to when
    a core runs it; and from when another thread displaces it to when it runs again. The kernel makes no difference
    between the two. Threads that are started after the meter are not counted.
    """

    def __init__(self) -> None:
        """Opens the counters of the threads that there are now; none where this system counts no delays."""
        self._files: dict[int, tuple[int, int]] = {}
        """File descriptor → nanoseconds and times, as last read; a thread that has ended keeps its last ones."""
        for counters in Path("/proc/self/task").glob("*/schedstat"):
            with suppress(OSError):  # the thread has ended
                self._files[os.open(counters, os.O_RDONLY | os.O_CLOEXEC)] = 0, 0
        self._last = self._read()

    def lap(self) -> Delay:
        """Returns the delay since the last call, or since the start."""
        before, self._last = self._last, self._read()
        return Delay((self._last[0] - before[0]) * 1e-9, self._last[1] - before[1])

    def close(self) -> None:
        """Closes the counters."""
        for file in self._files:
            os.close(file)
        self._files.clear()

    def _read(self) -> tuple[int, int]:
        for file in self._files:
            try:
                _, delay, times = os.pread(file, 100, 0).split()
            except (OSError, ValueError):  # the thread has ended
                continue
            self._files[file] = int(delay), int(times)
        return sum(delay for delay, _ in self._files.values()), sum(times for _, times in self._files.values())

"""Meters of the cores, and of this process and its descendants, through psutil."""

import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from deeppool.device.cpu import usable_cores
from deeppool.telemetry.record import ProcessSample


class CoreMeter:
    """Meter of the utilisation of each core, by all processes."""

    def __init__(self) -> None:
        """Starts counting."""
        self._before = _clocks()
        self.cores = tuple(core for core in usable_cores() if core in self._before)

    def read(self) -> tuple[float, ...]:
        """Returns each core's busy share of the time since the last reading, in the order of :attr:`cores`."""
        # One that is switched off meanwhile keeps its clocks.
        before, self._before = self._before, self._before | _clocks()
        return tuple(_busy(before[core], self._before[core]) for core in self.cores)


class ProcessMeter:
    """Meter of the CPU time and memory of this process and its descendants."""

    def __init__(self) -> None:
        """Starts counting."""
        self._root = psutil.Process()
        self._cpu: dict[psutil.Process, float] = {}
        self._read_at = time.perf_counter()
        self.read()

    def read(self) -> tuple[ProcessSample, ...]:
        """Returns a sample of each living process; a new one counts all its CPU time so far."""
        now = time.perf_counter()
        seconds, self._read_at = now - self._read_at, now
        before, self._cpu = self._cpu, {}
        found = []
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info().rss
                    # Not kept: one that was just forked has its parent's name.
                    name = _name(process)
            except psutil.Error:
                continue  # it has ended meanwhile
            self._cpu[process] = times.user + times.system
            used = self._cpu[process] - before.get(process, 0.0)
            found.append(ProcessSample(process.pid, name, memory, used / seconds if seconds else 0.0))
        return tuple(found)


def _clocks() -> dict[int, tuple[float, ...]]:
    """Returns the clocks of each core, by its number: those that are switched off are missing."""
    clocks = psutil.cpu_times(percpu=True)
    numbers: Iterable[int] = range(len(clocks))
    if sys.platform == "linux":
        # As psutil lists them, without their numbers.
        numbers = map(int, re.findall(r"^cpu(\d+)", Path(psutil.PROCFS_PATH, "stat").read_text(), re.MULTILINE))
    return dict(zip(numbers, clocks, strict=False))


def _busy(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    """Returns the busy share between two readings of one core's clocks; ``guest`` is in ``user`` already."""
    spent = {
        name: getattr(after, name) - getattr(before, name)
        for name in after._fields  # type: ignore[attr-defined]  # a named tuple that differs between systems
        if not name.startswith("guest")
    }
    total = sum(spent.values())
    idle = spent["idle"] + spent.get("iowait", 0.0)
    return min(1.0, max(0.0, 1 - idle / total)) if total > 0 else 0.0


def _name(process: psutil.Process) -> str:
    """Returns the name of a process: its module for ``python -m module``, else its program."""
    words = process.cmdline()
    return words[words.index("-m") + 1] if "-m" in words[:-1] else process.name()

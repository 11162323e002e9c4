"""Meters of the cores, and of this process and its descendants, through psutil."""

import time

import psutil

from deeppool.device.cpu import usable_cores
from deeppool.telemetry.record import ProcessSample


class CoreMeter:
    """Meter of the utilisation of each core, by all processes."""

    def __init__(self) -> None:
        """Starts counting."""
        self.cores = tuple(usable_cores())
        self._before = psutil.cpu_times(percpu=True)

    def read(self) -> tuple[float, ...]:
        """Returns each core's busy share of the time since the last reading, in the order of :attr:`cores`."""
        before, self._before = self._before, psutil.cpu_times(percpu=True)
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

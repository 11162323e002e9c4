"""When a background job must go: it hangs, it holds more memory than it may, or the machine has too little left.

Judged by what the operating system says of its processes, twice a second. A job at the lowest priority beside a busy
foreground may do nothing for hours and is well: it *wants* to run. So it is never judged by the clock alone:

    runs in circles   used the CPU time of many steps, and none is done
    stands still      nothing of it wanted to run whenever it was looked at, and it used no CPU time, for long
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from deeppool.units import format_bytes

if TYPE_CHECKING:
    import psutil

CIRCLING_SECONDS = 30.0
"""Of CPU time without a step, at least; ``SLOWEST_STEPS`` times the slowest step so far, where that is more."""
STARTING_SECONDS = 300.0
"""Of CPU time before the first step: for importing torch, and for building and capturing the model."""
SLOWEST_STEPS = 10.0
STILL_SECONDS = 60.0
"""A disk or a network may well be slow once in a while."""
STILL_CPU = 0.01
"""CPU seconds in which nothing is done."""
LEAST_FREE = 0.05
"""Of the machine's memory: with less available, the largest background goes."""
MOST_FREE = 2 * 2**30
"""Bytes that are enough on any machine."""
WANTING = ("running", "disk-sleep", "waking")


class Usage(NamedTuple):
    """Of all processes of a background job."""

    cpu: float
    """Seconds so far, of those that live."""
    memory: float
    """Bytes; pages that the processes share with others count once."""
    wants: bool
    """Whether one of them runs, waits for the core, or for a disk."""


def usages(groups: Iterable[int]) -> dict[int, Usage]:
    """Of some process groups; those that are gone are left out."""
    import psutil

    wanted = set(groups)
    members: dict[int, list[psutil.Process]] = defaultdict(list)
    for pid in psutil.pids():
        try:
            group = os.getpgid(pid)
            if group in wanted:
                members[group].append(psutil.Process(pid))
        except (OSError, psutil.NoSuchProcess):
            continue
    found = {group: _usage(processes) for group, processes in members.items()}
    return {group: usage for group, usage in found.items() if usage is not None}


def _usage(processes: "Iterable[psutil.Process]") -> Usage | None:
    from psutil import NoSuchProcess

    cpu, own, shared, states = 0.0, 0, 0, []
    for process in processes:
        try:
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
                states.append(process.status())
        except NoSuchProcess:
            continue
        cpu += times.user + times.system
        common = getattr(memory, "shared", 0)
        own += memory.rss - common
        shared = max(shared, common)
    return Usage(cpu, own + shared, any(state in WANTING for state in states)) if states else None


def shortage(total: float, available: float) -> float | None:
    """Bytes that are missing on a machine; None: there is enough."""
    missing = min(LEAST_FREE * total, MOST_FREE) - available
    return missing if missing > 0 else None


@dataclass(slots=True)
class ResourceWatch:
    """Of one background process, from its start on. Times are on a clock that stands while the launcher does."""

    budget: float | None
    """Bytes."""
    started: bool = False
    """Whether it has told of a step."""
    slowest: float = 0.0
    """CPU seconds of its slowest step."""
    _done: float = 0.0
    """CPU seconds that it had used when it last got on."""
    _cpu: float = 0.0
    _moved: float | None = None
    """When it last wanted to run or used some CPU time."""

    def got_on(self, now: float, cpu: float, slowest: float) -> None:
        """It told of a step, or that it waits for its turn; ``cpu`` seconds are what it had used then."""
        self.started, self._done, self.slowest, self._moved = True, cpu, slowest, now

    def hangs(self, now: float, usage: Usage, leader_cpu: float | None) -> str | None:
        """What is wrong; None: nothing.

        Args:
            now: the clock.
            usage: of all its processes.
            leader_cpu: seconds that the process which trains has used by itself; None: it has ended.
        """
        if self._moved is None or usage.wants or abs(usage.cpu - self._cpu) > STILL_CPU:
            self._moved, self._cpu = now, usage.cpu
        if now - self._moved > STILL_SECONDS:
            return f"hangs: it has done nothing for {now - self._moved:.0f} s"
        circled = (leader_cpu or 0.0) - self._done
        allowed = max(CIRCLING_SECONDS, SLOWEST_STEPS * self.slowest) if self.started else STARTING_SECONDS
        if circled > allowed:
            return f"hangs: it has used {circled:.0f} s of CPU time without a step"
        return None

    def over_budget(self, usage: Usage) -> str | None:
        """How far; None: it is not."""
        if self.budget is None or usage.memory <= self.budget:
            return None
        return f"evicted: it held {format_bytes(usage.memory)} of {format_bytes(self.budget)}"

"""Decides when a background job must be stopped: it hangs, exceeds its memory budget, or the machine lacks memory.

Decided from what the operating system reports of its processes, twice a second. A job at the lowest priority beside a
busy foreground may get no CPU time for hours and be well, as long as it is *runnable*. So time alone never decides:

    busy without progress   it used the CPU time of many steps, and completed none
    idle                    for long it used no CPU time and no process of it was runnable
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from deeppool.units import format_bytes

if TYPE_CHECKING:
    import psutil

BUSY_SECONDS = 30.0
"""Minimum CPU time without a step before a job counts as hung; ``SLOWEST_STEPS`` times its slowest step if longer."""
STARTING_SECONDS = 300.0
"""CPU time allowed before the first step: for importing torch, and for building and capturing the model."""
SLOWEST_STEPS = 10.0
IDLE_SECONDS = 60.0
"""Time after which an idle job counts as hung; a disk or a network may be slow at times."""
IDLE_CPU = 0.01
"""CPU seconds below which a job counts as idle."""
MIN_FREE_SHARE = 0.05
"""Share of the machine's memory below which the largest background is stopped."""
ENOUGH_FREE = 2 * 2**30
"""Bytes that are enough on any machine."""
RUNNABLE = ("running", "disk-sleep", "waking")


class Usage(NamedTuple):
    """Resources used by all processes of a background job."""

    cpu: float
    """CPU seconds so far, of the processes that live."""
    memory: float
    """Bytes; pages that the processes share with others count once."""
    runnable: bool
    """Whether one of them runs, or waits for the core or for a disk."""


def group_usages(groups: Iterable[int]) -> dict[int, Usage]:
    """Reads the usage of some process groups; those that have ended are left out."""
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
    return Usage(cpu, own + shared, any(state in RUNNABLE for state in states)) if states else None


def memory_shortage(total: float, available: float) -> float | None:
    """Returns the bytes of memory that a machine is short of; None: there is enough."""
    missing = min(MIN_FREE_SHARE * total, ENOUGH_FREE) - available
    return missing if missing > 0 else None


@dataclass(slots=True)
class ResourceWatch:
    """Detects a background process that hangs or exceeds its budget; its clock stops while the launcher does."""

    budget: float | None
    """Maximum bytes of memory; None: no maximum."""
    slowest: float = 0.0
    """CPU seconds of its slowest step; 0 before the first one."""
    _cpu_at_progress: float = 0.0
    """CPU seconds that it had used at its last progress."""
    _cpu: float = 0.0
    _active_at: float | None = None
    """Time at which it was last runnable or used CPU time."""

    def record_progress(self, now: float, cpu: float, slowest: float) -> None:
        """Records a progress report; ``cpu`` are the CPU seconds that it had used then."""
        self._cpu_at_progress, self.slowest, self._active_at = cpu, slowest, now

    def find_hang(self, now: float, usage: Usage, leader_cpu: float | None) -> str | None:
        """Describes a hang; None: it does not hang.

        Args:
            now: current time.
            usage: usage of all its processes.
            leader_cpu: CPU seconds of the process that trains; None: it has ended.
        """
        if self._active_at is None or usage.runnable or abs(usage.cpu - self._cpu) > IDLE_CPU:
            self._active_at, self._cpu = now, usage.cpu
        if now - self._active_at > IDLE_SECONDS:
            return f"hangs: it has done nothing for {now - self._active_at:.0f} s"
        busy = (leader_cpu or 0.0) - self._cpu_at_progress
        allowed = max(BUSY_SECONDS, SLOWEST_STEPS * self.slowest) if self.slowest else STARTING_SECONDS
        if busy > allowed:
            return f"hangs: it has used {busy:.0f} s of CPU time without a step"
        return None

    def over_budget(self, usage: Usage) -> str | None:
        """Describes how far it exceeds its budget; None: it does not."""
        if self.budget is None or usage.memory <= self.budget:
            return None
        return f"evicted: it held {format_bytes(usage.memory)} of {format_bytes(self.budget)}"

"""Whether processes have ended, and a wait until they have.

A zombie has ended: without an init process, as in a container, nobody waits for one whose parent is gone.
"""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

LOOK_SECONDS = 0.1
"""Seconds between two looks whether processes have ended."""


def has_ended(process: "psutil.Process") -> bool:
    """Whether a process has ended, also where another one has its id by now."""
    import psutil

    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_ended(processes: "Iterable[psutil.Process]", seconds: float) -> "list[psutil.Process]":
    """Waits until processes have ended, and returns those that have not within some seconds."""
    import psutil

    left, deadline = list(processes), time.monotonic() + seconds
    while left := [process for process in left if not has_ended(process)]:
        if (remaining := deadline - time.monotonic()) <= 0:
            break
        # This waits for children of this process, too.
        psutil.wait_procs(left, min(LOOK_SECONDS, remaining))
    return left

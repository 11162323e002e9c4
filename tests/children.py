"""The processes that a test has started."""

import contextlib

import psutil

HELPER = "multiprocessing.resource_tracker"
"""multiprocessing starts one in a process that uses it, for as long as that lives."""


def children() -> list[psutil.Process]:
    """All below this process, but for what multiprocessing keeps for itself."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if not any(HELPER in word for word in process.cmdline()):
                found.append(process)
    return found


def gone(process: psutil.Process) -> bool:
    """Ended; an orphan may wait for its new parent to notice."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

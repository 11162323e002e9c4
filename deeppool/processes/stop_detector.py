"""Detects processes of this machine that a signal has stopped (SIGSTOP, Ctrl-Z), and that nobody continues."""

from collections.abc import Iterable

STOPPED_SECONDS = 20.0
"""Seconds after which a stopped process of a run is ended, whatever it does there."""
CHECK_SECONDS = 1.0
"""Seconds between two checks."""


class StopDetector:
    """Detector that counts checks, not time: none is made while the process that makes them is stopped as well."""

    def __init__(self) -> None:
        """Starts without a stopped process."""
        self._checks: dict[int, int] = {}
        """Stopped process → consecutive checks in which it was."""

    def check(self, pids: Iterable[int]) -> list[int]:
        """Returns those of some processes that have been stopped for too long; called every :data:`CHECK_SECONDS`."""
        self._checks = {pid: self._checks.get(pid, 0) + 1 for pid in pids if is_stopped(pid)}
        return [pid for pid, checks in self._checks.items() if checks * CHECK_SECONDS >= STOPPED_SECONDS]


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process; a debugger that holds it does not count."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    # It has ended; or nothing can be read, as where this process may open no more files.
    except (psutil.Error, OSError):
        return False

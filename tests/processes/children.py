"""The processes that a test has started."""

import contextlib
import os
from collections.abc import Iterable

import psutil

HELPERS = ("multiprocessing.resource_tracker", "deeppool.processes.fork_server")
"""A process that uses them has one, for as long as it lives."""


def children() -> list[psutil.Process]:
    """All below this process, but for helpers."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            # What it forks looks like it, and is none.
            server = process.ppid() == os.getpid() and any("multiprocessing.forkserver" in word for word in words)
            if not server and not any(helper in word for helper in HELPERS for word in words):
                found.append(process)
    return found


def runs(process: psutil.Process, module: str) -> bool:
    """Whether a process was started to run a module of deeppool, as a new process or a fork."""
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return False  # ended, or ends just now
    return f"deeppool.{module}" in words or bool(words and words[0].startswith(f"deeppool.{module}:"))


def running(module: str, launcher: int | None = None) -> list[psutil.Process]:
    """Descendants of a launcher (by default this process) that run a module, in their order."""
    return in_order(process for process in psutil.Process(launcher).children(recursive=True) if runs(process, module))


def ranks(launcher: int | None = None) -> list[psutil.Process]:
    return running("execution.worker", launcher)


def backgrounds(launcher: int | None = None) -> list[psutil.Process]:
    return running("collocation.background_process", launcher)


def kill_all(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def gone(process: psutil.Process) -> bool:
    """Ended; an orphan may wait for its new parent to notice."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def in_order(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Ranks in their own order, which the title of a fork ends with: the numbers of processes may begin anew."""
    return sorted(processes, key=lambda process: (_title(process), process.create_time(), process.pid))


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""

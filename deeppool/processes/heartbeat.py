"""A rank's sign of life: every second, what it does, for how long, and whether it waits for other ranks.

A thread of its own sends it, so the launcher hears of a rank whose main thread is blocked, and tells the rank
that hangs from those that wait for it. A process that was stopped sends nothing, which says as much.
"""

import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from deeppool.processes.managed_process import CommandChannel

PERIOD = 1.0
"""Seconds between two signs of life."""

TORCH = f"{os.sep}torch{os.sep}"
DISTRIBUTED = f"{TORCH}distributed{os.sep}"
OURS = str(Path(__file__).parents[1])
STANDARD = sysconfig.get_path("stdlib")


class Activity(NamedTuple):
    """What a rank does."""

    what: str
    since: float
    """On the clock of ``time.perf_counter``."""
    waits: bool
    """Whether for other ranks, or for the launcher."""


class Heartbeat:
    """Tells the launcher what the main thread of this process does."""

    def __init__(self, commands: CommandChannel) -> None:
        """Starts telling."""
        self._commands = commands
        self._phase = Activity("its start", time.perf_counter(), waits=False)
        self.probe: Callable[[], Activity | None] = lambda: None
        """Knows it more exactly than the phase, where it knows it."""
        threading.Thread(target=self._beat, daemon=True).start()

    def enter(self, what: str, *, waits: bool = False) -> None:
        """The main thread begins something else."""
        self._phase = Activity(what, time.perf_counter(), waits)

    @property
    def doing(self) -> Activity:
        """What the main thread does now."""
        return self.probe() or self._phase

    def _beat(self) -> None:
        while True:
            what, since, waits = self.doing
            communicates, at = _look_at_main_thread()
            self._commands.answer(
                "pulse",
                what=what,
                since=since,
                seconds=time.perf_counter() - since,
                waits=waits or communicates,
                at=at,
            )
            time.sleep(PERIOD)


def is_library(path: str) -> bool:
    """Whether a source file is Python's, torch's or this package's; what is not is the user's own."""
    standard = path.startswith(STANDARD) and "site-packages" not in path
    return standard or TORCH in path or path.startswith((OURS, "<frozen", "<eval_with_key", "<string"))


def _look_at_main_thread() -> tuple[bool, str | None]:
    """Whether it is inside torch.distributed, as BatchNorm over ranks may be; and the innermost line of the user's."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    communicates, at = False, None
    while frame is not None:
        code = frame.f_code
        communicates = communicates or DISTRIBUTED in code.co_filename
        if at is None and not is_library(code.co_filename):
            at = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return communicates, at

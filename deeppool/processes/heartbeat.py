"""Heartbeat: reports what a rank does, for how long, and whether it waits for others, every second and when it changes.

A thread of its own sends it, so the launcher is informed about a rank whose main thread is blocked, and can distinguish
the rank that hangs from those that wait for it. A process that was stopped sends nothing, which is detected too.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from deeppool.base.user_code import is_library, torch_folder
from deeppool.processes.managed_process import CommandChannel

PERIOD = 1.0
"""Seconds between two heartbeats."""

FORK_SERVER = str(Path(__file__).with_name("fork_server.py"))


class Activity(NamedTuple):
    """Activity of the main thread of a rank."""

    what: str
    since: float
    """Start of the activity, on the clock of ``time.perf_counter``."""
    waits: bool
    """Whether it waits for other ranks, or for the launcher."""


class Heartbeat:
    """Reports the activity of this process's main thread to the launcher."""

    def __init__(self, commands: CommandChannel) -> None:
        """Starts sending heartbeats."""
        self._commands = commands
        self._sending = threading.Lock()
        self._phase = Activity("its start", time.perf_counter(), waits=False)
        self.probe: Callable[[], Activity | None] = lambda: None
        """Returns an activity that is more exact than the phase, or None."""
        threading.Thread(target=self._beat, daemon=True).start()

    def enter(self, what: str, *, waits: bool = False) -> None:
        """Reports that the main thread begins another phase, so that its end within the next second names it."""
        self._phase = Activity(what, time.perf_counter(), waits)
        self._send()

    @property
    def doing(self) -> Activity:
        """Current activity of the main thread."""
        return self.probe() or self._phase

    def _beat(self) -> None:
        while True:
            self._send()
            time.sleep(PERIOD)

    def _send(self) -> None:
        # One at a time, lest the phase before arrives after the new one.
        with self._sending:
            what, since, waits = self.doing
            communicates, at = _inspect_main_thread()
            seconds = time.perf_counter() - since
            self._commands.answer(
                "heartbeat", what=what, since=since, seconds=seconds, waits=waits or communicates, at=at
            )


def _inspect_main_thread() -> tuple[bool, str | None]:
    """Whether the main thread is in torch.distributed, as synchronised BatchNorm is; and the user's innermost line."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    communicates, at = False, None
    distributed = f"{torch_folder()}distributed{os.sep}"
    # What called the fork server is the launching command, which does nothing in this process.
    while frame is not None and frame.f_code.co_filename != FORK_SERVER:
        code = frame.f_code
        communicates = communicates or code.co_filename.startswith(distributed)
        if at is None and not is_library(code.co_filename):
            at = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return communicates, at

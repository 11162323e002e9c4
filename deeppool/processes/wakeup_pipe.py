"""Wake-up pipe: a named pipe in the private folder of a run, by which a foreground rank wakes a waiting background."""

import contextlib
import os
import select
from pathlib import Path

PIPE_BYTES = 65_536
"""Maximum number of notifications read at once: the capacity of a pipe on Linux."""


class WakeupPipe:
    """Pipe of one rank, opened by both sides. A notification costs microseconds, with or without a reader."""

    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        """Opens the pipe, or creates it.

        Args:
            folder: private folder of the run, on the rank's machine.
            rank: rank that notifies.
        """
        path = Path(folder) / f"wakeup-{rank}"
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # For both directions: opening one of them would wait for the other side.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def notify(self) -> None:
        """Wakes the waiting reader, or the next one that waits."""
        # Full of unread notifications: one more adds nothing.
        with contextlib.suppress(BlockingIOError):
            os.write(self._pipe, b"\0")

    def wait(self, seconds: float) -> bool:
        """Waits for a notification since the last call; returns False if none comes in time."""
        if not select.select([self._pipe], [], [], seconds)[0]:
            return False
        os.read(self._pipe, PIPE_BYTES)
        return True

    def close(self) -> None:
        """Closes this side of the pipe."""
        os.close(self._pipe)

"""By which a foreground rank wakes a background that waits: a pipe with a name, in the private folder of the run."""

import contextlib
import os
import select
from pathlib import Path

MOST = 65_536
"""Rings that are taken at once: as many as a pipe of Linux holds."""


class WakeupPipe:
    """The bell of one rank. Both sides open it; a ring costs microseconds, whether anybody listens or not."""

    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        """Opens it, or makes it.

        Args:
            folder: private, of the run, on the rank's machine.
            rank: whose bell it is.
        """
        path = Path(folder) / f"bell-{rank}"
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Both directions: to open one of them would wait for the other side.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def notify(self) -> None:
        """Wakes who waits, or whoever waits next."""
        # Full of rings that nobody has heard: one more says nothing.
        with contextlib.suppress(BlockingIOError):
            os.write(self._pipe, b"\0")

    def wait(self, seconds: float) -> bool:
        """Returns once it rings or has rung since the last call, or after so many seconds; whether it did."""
        if not select.select([self._pipe], [], [], seconds)[0]:
            return False
        os.read(self._pipe, MOST)
        return True

    def close(self) -> None:
        """Lets go of it; the other side keeps its own."""
        os.close(self._pipe)

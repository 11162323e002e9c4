"""What ends a command before its time: Ctrl-C, ``kill``, a terminal that closes. All three end it the same way."""

import math
import signal
import time
from types import FrameType

CLOSING_SECONDS = 5.0
"""In which another signal changes nothing: it would tear apart the ending that the first one began."""


def heed_interrupts() -> None:
    """From now on each of the three raises KeyboardInterrupt, so that a run clears away its processes and files."""
    last = -math.inf

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > CLOSING_SECONDS:
            last = now
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A command started by nohup, or put into the background by a shell, ignores some of them on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def ignore_interrupts() -> None:
    """From now on none of them is heard: the command is over, and Python is ending."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

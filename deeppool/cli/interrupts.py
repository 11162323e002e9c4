"""Handling of Ctrl-C, ``kill`` and a closed terminal, which all end a command in the same way."""

import math
import signal
import sys
import time
from types import FrameType

CLOSING_SECONDS = 5.0
"""Time after a signal during which further ones are ignored, so that they do not disturb the clean-up."""

RETRY_SECONDS = 0.05
"""Time after which a signal that came while torch was imported is looked at again."""


def handle_interrupts() -> None:
    """Makes SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that a run removes its processes and files.

    The C code of torch imports numpy and drops any exception of that, so a signal waits for the end of torch's import.
    """
    last = -math.inf

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        if _imports_torch():
            signal.signal(signal.SIGALRM, end)
            signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
            return
        now = time.monotonic()
        if now - last > CLOSING_SECONDS:
            last = now
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # nohup, or a shell that starts a command in the background, sets some of them to be ignored on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def ignore_interrupts() -> None:
    """Ignores all three signals while Python exits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _imports_torch() -> bool:
    return getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False)

"""Handling of Ctrl-C, ``kill`` and a closed terminal, which all end a command in the same way."""

import math
import signal
import sys
import time
from types import FrameType

CLOSING_SECONDS = 5.0
"""Time after a signal during which further ones are ignored, so that they do not disturb the clean-up."""

RETRY_SECONDS = 0.05
"""Time after which a signal that came at a moment that would drop it is looked at again."""


def handle_interrupts() -> None:
    """Makes SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that a run removes its processes and files.

    Two places drop any exception, so a signal waits until they are left: the C code of torch, which imports numpy, and
    what Python calls when it frees the lock of an imported module.
    """
    last = -math.inf

    def end(_number: int, frame: FrameType | None) -> None:
        nonlocal last
        if _imports_torch() or _is_of_imports(frame):
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
    """Ignores all three signals while Python exits, one that waits included."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _imports_torch() -> bool:
    return getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False)


def _is_of_imports(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")

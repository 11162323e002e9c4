"""Handling of Ctrl-C, ``kill`` and a closed terminal, which all end a command in the same way."""

import math
import signal
import sys
import time
from types import FrameType
from typing import Any

from deeppool.base.interruption import RETRY_SECONDS, would_abort

SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

CLOSING_SECONDS = 5.0
"""Time after a signal during which further ones are ignored, so that they do not disturb the clean-up."""


class _Last:
    raised = -math.inf
    """When the last interrupt was raised."""


def handle_interrupts() -> None:
    """Makes SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that a run removes its processes and files.

    The C code of torch imports numpy and drops any exception of that, so a signal waits for the end of torch's import.
    It also waits for the end of a function whose exceptions torch does not catch (:func:`would_abort`).
    Python drops the exceptions of what it calls at a fork, or when it frees an object: there the interrupt comes again.
    """
    for number in SIGNALS:
        # nohup, or a shell that starts a command in the background, sets some of them to be ignored on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    before = sys.unraisablehook

    def dropped(exception: Any) -> None:
        if not issubclass(exception.exc_type, KeyboardInterrupt):
            before(exception)
            return
        _Last.raised = -math.inf
        _end_later()

    sys.unraisablehook = dropped


def ignore_interrupts() -> None:
    """Ignores all three signals while Python exits, one that waits included."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def was_interrupted() -> bool:
    """Whether an interrupt was raised: C code may have made another exception of it."""
    return _Last.raised > -math.inf


def _end(_number: int, frame: FrameType | None) -> None:
    if _imports_torch() or would_abort(frame):
        _end_later()
        return
    now = time.monotonic()
    if now - _Last.raised > CLOSING_SECONDS:
        _Last.raised = now
        raise KeyboardInterrupt


def _end_later() -> None:
    signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)


def _imports_torch() -> bool:
    return getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False)

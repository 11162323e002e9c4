"""One line in place of a traceback, and no abort, where a notebook's user interrupts a long call."""

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

RETRY_SECONDS = 0.05
"""Time after which an interrupt comes again that was dropped, or would have been."""
FATAL = "find_torch_dispatch_rule"
"""Function in Python that torch's C++ code calls for the operators of an export: its exceptions abort the process."""


def would_abort(frame: FrameType | None) -> bool:
    """Whether an exception of a signal handler would abort the process where the signal has come."""
    while frame is not None and frame.f_code.co_name != FATAL:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def _interrupts_that_abort_nothing() -> Iterator[None]:
    """Ctrl-C comes a moment later where it would abort the process."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if would_abort(frame):
            threading.Timer(RETRY_SECONDS, os.kill, (os.getpid(), number)).start()
        else:
            handler(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, handler)


def interrupted(name: str) -> KeyboardInterrupt:
    """Returns what a call that was interrupted raises after its processes have ended; IPython prints it in one line.

    It is of no class of its own: only for KeyboardInterrupt itself does Python end a script by SIGINT, by which a shell
    ends its loop.
    """
    message = f"{name} was interrupted, nothing of it is running any more"
    error = KeyboardInterrupt(message)
    # IPython prints these lines instead of a traceback.
    error._render_traceback_ = lambda: [f"KeyboardInterrupt: {message}"]  # type: ignore[attr-defined]
    return error


def interruptible(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a long public call: its KeyboardInterrupt bears the name of the outermost call."""

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            with _interrupts_that_abort_nothing():
                return function(*arguments, **options)
        except KeyboardInterrupt:
            # Leaving the function has ended its processes.
            raise interrupted(function.__name__) from None

    return call

"""One line in place of a traceback where a notebook's user interrupts a long call."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


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
            return function(*arguments, **options)
        except KeyboardInterrupt:
            # Leaving the function has ended its processes.
            raise interrupted(function.__name__) from None

    return call

"""One line in place of a traceback where a notebook's user interrupts a long call."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class RunInterrupted(KeyboardInterrupt):
    """Raised in place of KeyboardInterrupt by a call that was interrupted, after its processes have ended."""

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that IPython prints instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


def interruptible(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a long call: an interrupt of it raises :class:`RunInterrupted`, by the name of the outermost call."""

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return function(*arguments, **options)
        except KeyboardInterrupt:
            # Leaving the function has ended its processes.
            raise RunInterrupted(f"{function.__name__} was interrupted, nothing of it is running any more") from None

    return call

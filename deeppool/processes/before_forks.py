"""What a fork server does once before it forks, so that no forked process has to: modules register it when imported.

In every other process nothing is called.
"""

from collections.abc import Callable

_registered: list[Callable[[], None]] = []


def register(function: Callable[[], None]) -> None:
    """Registers a function for the fork server that imports the caller; it leaves no thread and draws no number."""
    _registered.append(function)


def run() -> None:
    """Calls each registered function, once."""
    while _registered:
        _registered.pop(0)()

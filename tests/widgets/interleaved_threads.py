"""Two threads at one widget, as the messages of a page are handled: in the middle of one act another one begins."""

import threading
from collections.abc import Callable
from typing import Any

PATIENCE = 10.0
"""Seconds until an act that waits for nothing, as it should not, is taken to be over."""


class Turn:
    """In the place of a lock: knows when another thread wants it."""

    def __init__(self) -> None:
        """It is nobody's."""
        self._lock, self.wanted = threading.RLock(), threading.Event()

    def __enter__(self) -> None:
        """Waits for it."""
        if not self._lock.acquire(blocking=False):
            self.wanted.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        """The next one, please."""
        self._lock.release()


class Interrupted:
    """A function during whose first call an act begins in another thread, and goes on for as long as it can."""

    def __init__(self, function: Callable[..., Any], act: Callable[[], object], turn: Turn) -> None:
        """It was not called yet.

        Args:
            function: what it does before the act begins.
            act: what happens meanwhile.
            turn: for which the act should have to wait.
        """
        self._function, self._turn = function, turn
        self.thread = threading.Thread(target=act, daemon=True)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Does what the function does."""
        result = self._function(*arguments, **options)
        if self.thread.ident is None:
            self.thread.start()
            self._turn.wanted.wait(PATIENCE)
        return result

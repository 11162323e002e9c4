"""Interleaves two threads that use one widget, as JupyterLab does when it handles messages of a page."""

import threading
from collections.abc import Callable
from typing import Any

TIMEOUT = 120.0
"""Seconds to wait for the other thread to request the lock, which it does unless the code under test is wrong."""


class WatchedLock:
    """Replaces a lock; records when another thread requests it."""

    def __init__(self) -> None:
        """Starts unlocked."""
        self._lock, self.wanted = threading.RLock(), threading.Event()

    def __enter__(self) -> None:
        """Acquires the lock."""
        if not self._lock.acquire(blocking=False):
            self.wanted.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        """Releases the lock."""
        self._lock.release()


class InterleavedCall:
    """A function whose first call starts an action in another thread, and waits until that requests the lock."""

    def __init__(self, function: Callable[..., Any], act: Callable[[], object], turn: WatchedLock) -> None:
        """Prepares the thread.

        Args:
            function: called before the action starts.
            act: runs in the other thread.
            turn: lock that the action should wait for.
        """
        self._function, self._turn = function, turn
        self.thread = threading.Thread(target=act, daemon=True)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Calls the function."""
        result = self._function(*arguments, **options)
        if self.thread.ident is None:
            self.thread.start()
            self._turn.wanted.wait(TIMEOUT)
        return result

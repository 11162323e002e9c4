"""Ending a live run from another thread.

The run's own thread notices where it waits for its processes and where it tells of its progress, raises there,
and leaves its ``with`` blocks, which end every process. Nobody else touches them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, TypeVar

from deeppool.errors import RunCancelledError

Item = TypeVar("Item")


class Cancellation:
    """Of one run, which has one thread."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self._lock = threading.Lock()
        self._asked = False
        self._waits_for: SimpleQueue[Any] | None = None

    def ask(self) -> None:
        """From any thread: the run shall end. Returns at once."""
        with self._lock:
            self._asked = True
            if self._waits_for is not None:
                self._waits_for.put(None)

    @property
    def asked(self) -> bool:
        """Whether the run shall end."""
        return self._asked

    def check(self) -> None:
        """Raises RunCancelledError when the run shall end."""
        if self._asked:
            raise RunCancelledError("the run was cancelled, every process of it was ended")

    @contextmanager
    def governing(self) -> Iterator[None]:
        """What this thread waits for in the block can be cancelled."""
        token = _GOVERNING.set(self)
        try:
            yield
        finally:
            _GOVERNING.reset(token)

    def wait(self, inbox: SimpleQueue[Item], timeout: float) -> Item:
        """As :func:`wait`."""
        with self._lock:
            self.check()
            self._waits_for = inbox
        try:
            item = inbox.get(timeout=timeout)
        finally:
            with self._lock:
                self._waits_for = None
        self.check()
        return item


_GOVERNING: ContextVar[Cancellation | None] = ContextVar("governing", default=None)


def check() -> None:
    """Ends a long computation here if this thread's run was cancelled.

    Raises:
        RunCancelledError: it was.
    """
    governing = _GOVERNING.get()
    if governing is not None:
        governing.check()


@contextmanager
def governing() -> Iterator[Cancellation]:
    """By which this thread's run in the block can be cancelled: the one that governs it, or a new one."""
    current = _GOVERNING.get()
    if current is not None:
        yield current
        return
    cancellation = Cancellation()
    with cancellation.governing():
        yield cancellation


def wait(inbox: SimpleQueue[Item], timeout: float) -> Item:
    """The next item.

    Raises:
        queue.Empty: none within ``timeout`` seconds.
        RunCancelledError: this thread's run was cancelled.
    """
    governing = _GOVERNING.get()
    return inbox.get(timeout=timeout) if governing is None else governing.wait(inbox, timeout)

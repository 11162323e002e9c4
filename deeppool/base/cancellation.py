"""Cancellation of a live run from another thread.

The run's own thread checks for it where it waits for its processes and where it reports progress, raises there, and
leaves its ``with`` blocks, which end every process. No other thread touches the processes.
"""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, TypeVar

from deeppool.errors import RunCancelledError

Item = TypeVar("Item")
TICK = 1.0
"""Longest single wait, in seconds."""


class Cancellation:
    """Cancellation request of one run, which has one thread."""

    def __init__(self) -> None:
        """Starts without a request."""
        self._lock = threading.Lock()
        self._requested = False
        self._waits_for: SimpleQueue[Any] | None = None

    def request(self) -> None:
        """Requests the end of the run, from any thread, and returns at once."""
        with self._lock:
            self._requested = True
            if self._waits_for is not None:
                self._waits_for.put(None)

    @property
    def requested(self) -> bool:
        """Whether the end of the run was requested."""
        return self._requested

    def check(self) -> None:
        """Raises RunCancelledError if the end of the run was requested."""
        if self._requested:
            raise RunCancelledError("the run was cancelled, every process of it was ended")

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Makes the waits and checks of this thread in the block subject to this cancellation."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def wait(self, inbox: SimpleQueue[Item], timeout: float) -> Item:
        """Returns the next item, as :func:`wait` does."""
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


_CURRENT: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def check() -> None:
    """Interrupts a long computation if this thread's run was cancelled.

    Raises:
        RunCancelledError: the run was cancelled.
    """
    current = _CURRENT.get()
    if current is not None:
        current.check()


@contextmanager
def cancellable() -> Iterator[Cancellation]:
    """Yields the cancellation that applies to this thread, or a new one that applies in the block."""
    current = _CURRENT.get()
    if current is not None:
        yield current
        return
    cancellation = Cancellation()
    with cancellation.applied():
        yield cancellation


def wait(inbox: SimpleQueue[Item], timeout: float) -> Item:
    """Returns the next item of an inbox.

    Time for which this process is stopped (Ctrl-Z) counts as a second at most: the senders' items are still on the way.

    Raises:
        queue.Empty: none within ``timeout`` seconds.
        RunCancelledError: this thread's run was cancelled.
    """
    current = _CURRENT.get()
    while True:
        tick = min(timeout, TICK)
        try:
            return inbox.get(timeout=tick) if current is None else current.wait(inbox, tick)
        except queue.Empty:
            timeout -= tick
            if timeout <= 0:
                raise

"""One export at a time: torch.export keeps modes of tracing that all threads of a process share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from deeppool.base.cancellation import check

_TRACING = threading.RLock()
POLL = 0.1
"""Seconds between two looks at a cancellation."""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Waits until no other thread of this process traces.

    Raises:
        RunCancelledError: the run was cancelled while it waited.
    """
    while not _TRACING.acquire(timeout=POLL):
        check()
    try:
        yield
    finally:
        _TRACING.release()

"""Settings of the C library's allocator that keep freed memory in the process for the next iteration.

glibc maps large blocks one by one and unmaps them when they are freed, or cuts off the end of the heap. A training
frees at the end of an iteration what it needs in the next one, and the operating system then clears each page anew. How
often depends on where blocks happen to lie, so it differs from one process to the next. With VGG-16 on 32 x 32 images,
batch 8, it is 120 thousand pages an iteration, and a quarter of its time. On GPUs torch keeps memory by itself.

Source: mallopt(3). PyTorch's tuning guide asks for another allocator to be preloaded, for the same reason.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_NEVER = -1
_MOST_MAPPED = 65_536
"""Maximum number of mapped blocks: glibc's own bound."""
_LARGEST_THRESHOLD = 32 * 2**20
"""Bytes that glibc's own threshold reaches after a block that large was freed."""


def keep_memory() -> bool:
    """Makes this process keep freed memory from now on; returns False where the C library has no such call."""
    return _set(_MMAP_MAX, 0) and _set(_TRIM_THRESHOLD, _NEVER)


def share_heap() -> bool:
    """Makes threads that start later use memory freed by one another; returns False as :func:`keep_memory` does.

    Without it glibc gives up to eight threads for each core an arena of their own.
    """
    return _set(_ARENA_MAX, 1)


@contextmanager
def memory_kept() -> Iterator[None]:
    """Keeps freed memory in the block, for a process that also does other work; then returns it to the system."""
    kept = keep_memory()
    try:
        yield
    finally:
        if kept:
            _set(_MMAP_MAX, _MOST_MAPPED)
            _set(_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
            _set(_TRIM_THRESHOLD, 2 * _LARGEST_THRESHOLD)
            ctypes.CDLL(None).malloc_trim(0)


def _set(what: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(what, value))
    except (AttributeError, OSError, TypeError):
        # Not glibc; or, on Windows, a C library without the call.
        return False

"""Out of memory in this process: an allocation, a library that is loaded, or a thread."""

import contextlib
import errno
import mmap
import re

_TEXT = re.compile(
    r"failed to map segment|allocate memory|not enough memory|out of memory|unable to allocate|can't start new thread"
    r"|std::bad_alloc",
    re.IGNORECASE,
)
OUT_OF_MEMORY = "this process ran out of memory (free some, or raise its limit: ulimit -v)"
_NO_ROOM = 256 * 2**20
"""Bytes: C code that could not allocate what is far below this often fails without saying why."""
_RESERVE = mmap.mmap(-1, 4 * 2**20)
"""Address space that is given back when an error is looked at, so that it can be reported."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it followed from, is that of a process without memory."""
    _RESERVE.close()
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, MemoryError) or (isinstance(found, OSError) and found.errno == errno.ENOMEM):
            return True
        if isinstance(found, ImportError | OSError | RuntimeError) and _TEXT.search(str(found)):
            return True
        if isinstance(found, ImportError | SystemError) and _at_its_limit():
            return True
        found = found.__cause__ or found.__context__
    return False


def _at_its_limit() -> bool:
    """Whether this process has mapped nearly all that it may (``ulimit -v``)."""
    with contextlib.suppress(ImportError, OSError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        try:
            import psutil

            return limit != resource.RLIM_INFINITY and psutil.Process().memory_info().vms > limit - _NO_ROOM
        except MemoryError:
            return True
    return False

"""Out of memory in this process: an allocation, a library that is loaded, or a thread."""

import errno
import re

_TEXT = re.compile(
    r"failed to map segment|allocate memory|not enough memory|out of memory|unable to allocate|can't start new thread",
    re.IGNORECASE,
)


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it followed from, is that of a process without memory."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, MemoryError) or (isinstance(found, OSError) and found.errno == errno.ENOMEM):
            return True
        if isinstance(found, ImportError | OSError | RuntimeError) and _TEXT.search(str(found)):
            return True
        found = found.__cause__ or found.__context__
    return False

"""One writer of a folder at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deeppool.errors import DocumentError, RunError

LOCK = ".lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Nobody else is in such a block for this folder; the kernel frees it when the process ends, however that ends.

    Raises:
        RunError: somebody else is.
        DocumentError: the folder cannot be written.
    """
    try:
        stream = (folder / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise DocumentError(f"cannot write {folder}: {error.strerror} (choose another folder)") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            raise RunError(
                f"another nightly (process {holder}) writes to {folder} (wait until it is over, or give another -o)"
            ) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield

"""Lock file that lets one process at a time write to a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from deeppool.errors import DocumentError, RunError


@contextmanager
def file_lock(path: Path, refusal: str) -> Iterator[None]:
    """Holds a lock file; the operating system releases it when the process ends, however it ends.

    Args:
        path: the lock file; it stays when the lock is released.
        refusal: message of the RunError.

    Raises:
        RunError: another process, or another thread, holds it.
        DocumentError: the folder cannot be written.
    """
    lock = filelock.FileLock(path, mode=0o600)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        raise RunError(refusal) from None
    except OSError as error:
        raise DocumentError(f"cannot write {path.parent}: {error.strerror} (choose another folder)") from error
    try:
        yield
    finally:
        lock.release()

"""Files that only this user may read: created so whatever the umask, and checked before a secret in them is trusted."""

import os
import stat
from pathlib import Path

from deeppool.errors import RunError

OTHERS = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private(path: str, flags: int) -> int:
    """Opens a file, for ``open(…, opener=private)``; a file that this creates has mode 0600."""
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, closed to all others; ``mkdir`` would open those above."""
    if not folder.is_dir():
        make_private_folder(folder.parent)
        folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)


def check_private(path: Path, *, writable_only: bool = False) -> None:
    """Checks that a file or folder is of this user, and closed to all others.

    Args:
        path: of the file or folder; a symbolic link is refused.
        writable_only: whether others may read, but not write it.

    Raises:
        RunError: it is not, with its owner and mode.
    """
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    refused = OTHERS_WRITE if writable_only else OTHERS
    if found.st_uid == os.getuid() and not mode & refused and not stat.S_ISLNK(found.st_mode):
        return
    what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else f"of user {found.st_uid} with mode {mode:o}"
    wanted = "700" if path.is_dir() else "600"
    raise RunError(
        f"{path} is {what}, it must be of user {os.getuid()} with mode {wanted}: others could use or replace what it "
        f"holds (chmod {wanted} it if nobody else has read it, else delete it: it is made again)"
    )

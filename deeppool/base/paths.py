"""Whether a text that may be a name of something else is that of a file."""

import os


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether something has this path; False, too, where the text cannot be a path, as one that is too long.

    ``Path.exists`` raises OSError then.
    """
    return os.path.exists(path)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file has this path; False, too, where the text cannot be a path."""
    return os.path.isfile(path)  # noqa: PTH113

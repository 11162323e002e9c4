"""Pickling of what the processes of a run get, with the code that it needs."""

from pathlib import Path
from typing import Any

from deeppool.errors import InvalidValueError, RunError
from deeppool.units import format_bytes


def pickled(value: Any, what: str) -> bytes:
    """Returns a value with its code, which may be defined in a notebook.

    Args:
        value: anything.
        what: what it is, for the message.

    Raises:
        InvalidValueError: it cannot be pickled.
    """
    import cloudpickle

    try:
        content: bytes = cloudpickle.dumps(value)
    except Exception as error:  # each object pickles itself in its own way
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InvalidValueError(
            f"{what} cannot be sent to the processes of the run: {reason} (make what holds it inside the "
            "function that needs it, such as that of the dataset; a model may be given as 'package.module:callable')"
        ) from error
    return content


def load_pickled(path: Path) -> Any:
    """Returns a value that the launcher of this process wrote: loading it runs its code."""
    import cloudpickle

    return cloudpickle.loads(path.read_bytes())


def save_pickled(value: Any, what: str, path: Path) -> None:
    """Writes a value with its code to a file that the processes of a run read.

    Args:
        value: anything.
        what: what it is, for the messages.
        path: the file, in the private folder of the run.

    Raises:
        InvalidValueError: it cannot be pickled.
        RunError: the file cannot be written.
    """
    content = pickled(value, what)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise RunError(
            f"cannot write {what} to {path}: {error.strerror} (its processes read it there: make room for "
            f"{format_bytes(len(content))}, or set TMPDIR to a folder with more)"
        ) from error

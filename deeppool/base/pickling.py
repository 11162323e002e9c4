"""Pickling of what the processes of a run get, with the code that it needs."""

from typing import Any

from deeppool.errors import InvalidValueError


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

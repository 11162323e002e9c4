"""Checks of arguments that Python code gives."""

import os

from deeppool.errors import InvalidValueError


def require(value: object, kind: type, name: str, *, maker: str) -> None:
    """Checks that an argument has its type; the usual mistakes are the file of a record, and a function that makes it.

    Args:
        value: argument.
        kind: type that it must have.
        name: name of the argument.
        maker: what makes such a value.

    Raises:
        InvalidValueError: it has another one.
    """
    if isinstance(value, kind):
        return
    got, hint = f"a {type(value).__name__}", f"{maker} makes one"
    if isinstance(value, str | os.PathLike):
        got = f"'{value}'"
        hint = f"dp.load({os.fspath(value)!r}) reads a file" if ":" not in str(value) else "import and call it"
    elif callable(value) and hasattr(value, "__name__"):
        got, hint = f"'{value.__name__}'", f"give what it returns: {value.__name__}()"
    raise InvalidValueError(f"{name} must be a {kind.__name__}, got {got} ({hint})")

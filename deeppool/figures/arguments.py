"""Validation of the records that figures are made of."""

from deeppool.errors import InvalidValueError


def require(record: object, kind: type, figure: str) -> None:
    """Raises an InvalidValueError unless a record has the type that a figure draws."""
    if not isinstance(record, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise InvalidValueError(f"{figure} cannot draw a {type(record).__name__}, it accepts {article} {kind.__name__}")

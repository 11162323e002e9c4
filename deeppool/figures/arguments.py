"""Validation of the records that figures are made of."""

from collections.abc import Sequence

from deeppool.errors import InvalidValueError


def require(record: object, kind: type, figure: str) -> None:
    """Raises an InvalidValueError unless a record has the type that a figure draws."""
    if not isinstance(record, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise InvalidValueError(f"{figure} cannot draw a {type(record).__name__}, it accepts {article} {kind.__name__}")


def require_all(records: Sequence[object], kind: type, figure: str, accepted: str) -> None:
    """Raises an InvalidValueError unless there are records, all of the type that a figure draws."""
    wrong = next((record for record in records if not isinstance(record, kind)), None)
    if wrong is not None or not records:
        what = "nothing" if wrong is None else f"a {type(wrong).__name__}"
        raise InvalidValueError(f"{figure} cannot draw {what}, it accepts {accepted}")

"""Compares any two records of one kind field by field, where no comparison of its own exists for the kind."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from deeppool.base import serialization
from deeppool.errors import InvalidValueError
from deeppool.units import format_growth

Scalar = bool | int | float | str | None
MOST_LINES = 40
"""Changes that the text lists; the record has all of them."""
ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field whose value differs between two records."""

    path: str
    """Names and positions that lead to it, such as ``layers[3].time``."""
    before: Scalar
    """Value in the first record; ``absent`` where it has no such field."""
    after: Scalar

    @property
    def relative(self) -> float:
        """Change relative to the size of the earlier number, positive where it grew.

        Infinite where the values are no numbers, or the earlier one is 0.
        """
        numbers = [x for x in (self.before, self.after) if isinstance(x, int | float) and not isinstance(x, bool)]
        if len(numbers) < 2 or not numbers[0]:
            return math.inf
        return (numbers[1] - numbers[0]) / abs(numbers[0])

    def __str__(self) -> str:
        change = "" if math.isinf(self.relative) else f"  ({100 * self.relative:+.3g} %)"
        if isinstance(self.before, int | float) and self.before > 0 and 1 < self.relative < math.inf:
            change = f"  ({format_growth(self.relative)})"
        return f"{self.path}: {_text(self.before)} → {_text(self.after)}{change}"


@dataclass(frozen=True, slots=True)
class FieldChanges:
    """The fields in which two records of one kind differ."""

    KIND: ClassVar[str] = "field-changes"

    kind: str
    """Kind of both records, as in the ``format`` of their files."""
    equal: int
    """Fields of equal value."""
    changes: tuple[FieldChange, ...]
    """In the order of the fields."""

    def __str__(self) -> str:
        return f"{self.kind}: {len(self.changes)} of {self.equal + len(self.changes)} values differ"

    def explain(self) -> str:
        """Returns the changes, the relatively largest first, one per line."""
        ordered = sorted(self.changes, key=lambda change: -abs(change.relative))
        more = len(ordered) - MOST_LINES
        rest = [f"… and {more} more (with --json, all of them)"] if more > 0 else []
        return "\n".join([str(self), *(f"  {change}" for change in ordered[:MOST_LINES]), *rest])


def compare_fields(before: serialization.Record, after: serialization.Record) -> FieldChanges:
    """Compares two records of one kind.

    Raises:
        InvalidValueError: they are of different kinds.
    """
    if type(before) is not type(after):
        raise InvalidValueError(
            f"a {before.KIND} and a {after.KIND} cannot be compared (give two records of the same kind)"
        )
    old, new = (dict(_scalars("", serialization.to_json(record))) for record in (before, after))
    paths = [*old, *(path for path in new if path not in old)]
    found = [FieldChange(path, old.get(path, ABSENT), new.get(path, ABSENT)) for path in paths]
    changed = tuple(change for change in found if change.before != change.after)
    return FieldChanges(before.KIND, len(found) - len(changed), changed)


def _scalars(path: str, value: Any) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _scalars(f"{path}.{name}" if path else str(name), inner)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _scalars(f"{path}[{position}]", inner)
    else:
        yield path, value


def _text(value: Scalar) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)

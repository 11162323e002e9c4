"""Values that the papers print for their figures and tables, with the sentence and its place.

They lie in ``papers/``, a file for each paper and in it a table for each evaluation. What no text prints, such as the
points of a curve that is only drawn, is named as such: no value is read off a picture.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PAPERS = Path(__file__).parent / "papers"
_NUMBER = r"(\d+(?:\.\d+)?)"


@dataclass(frozen=True, slots=True)
class PaperValue:
    """One value that a paper prints, in its words."""

    name: str
    """Name of the number beside it; ``*`` stands for any text without a colon, for names that hold parameters."""
    value: float | str
    """In the number's unit, or a text such as ``1.2 to 2.3`` or ``falls``."""
    unit: str
    place: str
    """Section, figure or table."""
    quote: str
    """The sentence or cell, as the paper has it."""
    missing: str = ""
    """Why no number of this project is beside it; empty: one is."""

    def is_beside(self, number: str) -> bool:
        """Whether a number of that name stands beside the value."""
        return not self.missing and re.fullmatch(_pattern(self.name), number) is not None

    @property
    def levels(self) -> tuple[float, ...]:
        """Values to draw: both ends of a range, or the one value; empty if it is words."""
        if not isinstance(self.value, str):
            return (self.value,)
        found = re.fullmatch(rf"(?:{_NUMBER} to |up to |almost |at least )?{_NUMBER}", self.value)
        return () if found is None else tuple(float(part) for part in found.groups() if part)


@dataclass(frozen=True, slots=True)
class PaperValues:
    """All values that a paper prints for one evaluation."""

    title: str = ""
    """The paper's."""
    values: tuple[PaperValue, ...] = ()
    unprinted: str = ""
    """Why the other numbers have none."""

    def beside(self, number: str) -> PaperValue | None:
        """Returns the value for a number of the evaluation, or None: the paper prints none."""
        return next((value for value in self.values if value.is_beside(number)), None)

    def levels_beside(self, number: str) -> tuple[float, ...]:
        """Returns the numbers of the value for a number of the evaluation; none if the paper prints none, or words."""
        value = self.beside(number)
        return () if value is None else value.levels


def paper_values(evaluation: str) -> PaperValues:
    """Returns what the papers print for an evaluation; nothing for one that reproduces no paper."""
    return _read().get(evaluation, PaperValues())


@cache
def _read() -> dict[str, PaperValues]:
    found = {}
    for path in sorted(PAPERS.glob("*.toml")):
        evaluations: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        title = evaluations.pop("title")
        for name, table in evaluations.items():
            found[name] = PaperValues(title, tuple(map(_value, table["values"])), table["unprinted"])
    return found


def _value(table: dict[str, Any]) -> PaperValue:
    """Returns one value; whole numbers become floats, as records hold them."""
    value = table["value"]
    return PaperValue(**{**table, "value": value if isinstance(value, str) else float(value)})


@cache
def _pattern(name: str) -> str:
    return "[^:]+".join(map(re.escape, name.split("*")))

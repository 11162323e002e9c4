"""Entries of an evaluation: numbers beside the paper's, and checks that hold or do not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from deeppool.errors import InvalidValueError

Basis = Literal["measured", "emulated", "simulated", "estimated", "predicted", "counted"]
"""Source of a number:

measured    by a clock, on the evaluation's device
emulated    by a clock, with one rank real and the others modelled; or on an emulated device
simulated   on a virtual clock
estimated   from a data sheet
predicted   by a plan, from layer times
counted     on a captured graph; no time
"""


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a table or a figure."""

    name: str
    """Unique in its evaluation and stable: nightly runs compare numbers by name."""
    value: float
    unit: str
    """``s`` for times, ``B`` for sizes, otherwise the text to print: ``x``, ``%``, ``samples/s``."""
    basis: Basis
    spread: float | None = None
    """Half the interquartile range over repetitions, in the number's unit; None: it was not repeated."""
    paper: float | str | None = None
    """The paper's value in the same unit, or a text such as ``1.2 to 2.3``; None: the paper has none."""
    why: str = ""
    """Why it differs from the paper's."""

    def __post_init__(self) -> None:
        if self.basis not in get_args(Basis):
            raise InvalidValueError(
                f"number '{self.name}' has basis {self.basis!r}, expected one of {', '.join(get_args(Basis))}"
            )
        for field, value in (("value", self.value), ("spread", self.spread), ("paper", self.paper)):
            if isinstance(value, float | int) and not math.isfinite(value):
                raise InvalidValueError(
                    f"number '{self.name}' has {field} {value}: a record holds finite numbers only (leave it out, "
                    "and say in a check why there is none)"
                )
        if self.spread is not None and self.spread < 0:
            raise InvalidValueError(f"number '{self.name}' has spread {self.spread}, it must be at least 0")


@dataclass(frozen=True, slots=True)
class Check:
    """A statement about the numbers, with whether it holds."""

    statement: str
    """A stable sentence: ``VGG-16 gains from burst parallelism``."""
    holds: bool
    detail: str = ""
    """The values that decide it."""
    known: str = ""
    """Reason for an expected failure: why the paper's statement does not hold here. It fails no nightly run."""
    inapplicable: str = ""
    """Why it cannot fail with these parameters: that it holds says nothing, and it is shown as not applicable."""

    @property
    def shows(self) -> bool:
        """Whether the statement holds, and could have failed."""
        return self.holds and not self.inapplicable


def count_holding(checks: Sequence[Check]) -> str:
    """Counts the checks that hold among those that could fail: ``3 of 4 checks hold, 1 not applicable``."""
    held = sum(check.shows for check in checks)
    applicable = held + sum(not check.holds for check in checks)
    more = f", {len(checks) - applicable} not applicable" if len(checks) > applicable else ""
    return f"{held} of {applicable} checks hold{more}"

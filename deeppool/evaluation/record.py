"""What an evaluation notebook found: numbers beside the paper's, and statements that hold or do not."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from deeppool.errors import InvalidValueError

Basis = Literal["measured", "emulated", "simulated", "estimated", "predicted"]
"""Where a number comes from.

measured    by a clock, on the evaluation's device
emulated    by a clock, with one rank real and the others modelled
simulated   on a virtual clock
estimated   from a data sheet
predicted   by a plan, from layer times
"""


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a table or a figure."""

    name: str
    """Unique in its evaluation, and the same every night: a verdict compares by it."""
    value: float
    unit: str
    """``s`` and ``B`` for times and sizes; else as it shall be read: ``x``, ``%``, ``samples/s``."""
    basis: Basis
    spread: float | None = None
    """Half the interquartile range over repetitions, in the number's own unit; None: it was not repeated."""
    paper: float | str | None = None
    """What the paper has: a value in the same unit, or a text such as ``1.2 to 2.3``; None: nothing."""
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
    """A statement about the numbers."""

    statement: str
    """A sentence, the same every night: ``VGG-16 gains from burst parallelism``."""
    holds: bool
    detail: str = ""
    """The values that decide it."""
    known: str = ""
    """Why it is known not to hold here, where the paper's does: it is told, and no night fails for it."""


@dataclass(frozen=True)
class Evaluation:
    """One table or figure, made again: what :class:`deeppool.evaluation.Findings` saves as ``record.json``."""

    KIND: ClassVar[str] = "evaluation"

    name: str
    """Of its notebook: ``fig10``."""
    title: str
    numbers: tuple[Number, ...]
    checks: tuple[Check, ...]
    device: str
    """On which the numbers were measured, or for which they were simulated or estimated."""
    date: str
    versions: dict[str, str]
    parameters: dict[str, Any]
    """Of the notebook."""

    def __post_init__(self) -> None:
        for what, names in (
            ("number", [number.name for number in self.numbers]),
            ("check", [check.statement for check in self.checks]),
        ):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise InvalidValueError(f"{self.name} has two {what}s '{twice}' (give each a name of its own)")

    @property
    def holds(self) -> bool:
        """Whether every check does, but for those that are known not to."""
        return all(check.holds or check.known for check in self.checks)

    def explain(self) -> str:
        """The evaluation as tables: the paper's numbers beside these, and the checks."""
        from deeppool.evaluation.report import as_text

        return as_text(self)

    def __str__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        from deeppool.evaluation.report import as_html

        return as_html(self)

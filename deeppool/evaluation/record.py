"""The record of one evaluation notebook."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from deeppool.errors import InvalidValueError
from deeppool.evaluation.entries import Check, Number
from deeppool.evaluation.paper_values import PaperValues


@dataclass(frozen=True)
class Evaluation:
    """Reproduction of one table or figure of the paper, saved as ``record.json`` by :class:`Findings`."""

    KIND: ClassVar[str] = "evaluation"

    name: str
    """Name of the notebook: ``fig10``."""
    title: str
    numbers: tuple[Number, ...]
    checks: tuple[Check, ...]
    device: str
    """Device that the numbers were measured on, or simulated or estimated for."""
    date: str
    versions: dict[str, str]
    parameters: dict[str, Any]
    """Parameters of the notebook."""
    paper: PaperValues = field(default_factory=PaperValues)
    """What the paper prints for it, in its words."""

    def __post_init__(self) -> None:
        for what, names in (
            ("number", [number.name for number in self.numbers]),
            ("check", [check.statement for check in self.checks]),
        ):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise InvalidValueError(f"{self.name} has two {what}s '{twice}' (give each its own name)")

    @property
    def holds(self) -> bool:
        """Whether every check holds, expected failures aside."""
        return all(check.holds or check.known for check in self.checks)

    @property
    def heading(self) -> str:
        """Title, name, device and date in a line."""
        return f"{self.title} ({self.name}; {self.device}, {self.date})"

    def explain(self) -> str:
        """Returns the evaluation as tables: the paper's numbers beside these, its words, and the checks."""
        from deeppool.evaluation.tables import as_text

        return as_text(self.heading, self.numbers, self.checks, self.paper)

    def __str__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        from deeppool.evaluation.tables import as_html

        return as_html(self.heading, self.numbers, self.checks, self.paper)

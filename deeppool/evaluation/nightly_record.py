"""What one night leaves: per notebook how it ended, the numbers it told, the checks that held."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from deeppool.evaluation.record import Basis, Check

State = Literal["done", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class Observation:
    """A number of one night, to be compared with the same number of other nights."""

    name: str
    value: float
    unit: str
    basis: Basis
    spread: float = 0.0
    """Half the interquartile range over repetitions, in the number's unit."""
    group: str = ""
    """Numbers of one group were measured together, such as the layers of one profile: what the machine did to all of
    them alike is told from what happened to one. Empty: it stands alone."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One notebook of one night."""

    name: str
    title: str
    state: State
    problem: str
    """Why it is not done; empty where it is."""
    measures: bool
    """It ran with nothing of the night's beside it."""
    parameters: dict[str, Any]
    """That the preset and the command gave it."""
    seconds: float
    notebook: str
    """Its executed copy, below the night's folder; empty where there is none."""
    html: str
    observations: tuple[Observation, ...] = ()
    checks: tuple[Check, ...] = ()
    fingerprint: str = ""
    """Of the notebook as it was."""
    thumbnails: tuple[str, ...] = ()
    """Pictures of its figures, below the night's folder."""


@dataclass(frozen=True)
class NightlyRun:
    """All notebooks of one night: ``night.json``."""

    KIND: ClassVar[str] = "night"

    name: str
    """Of its folder: a date, and a number from the second night of a day on."""
    preset: str
    device: str
    """The machine: numbers of another one are no history."""
    notebooks: tuple[str, ...]
    """All that the night was to run."""
    started: str
    """ISO 8601, local time with its offset."""
    finished: str
    """Empty while the night is not over."""
    versions: dict[str, str]
    outcomes: tuple[Outcome, ...]

    def outcome(self, notebook: str) -> Outcome | None:
        """Of a notebook; None where the night did not have it."""
        return next((outcome for outcome in self.outcomes if outcome.name == notebook), None)

    @property
    def complete(self) -> bool:
        """Every notebook ran to its end."""
        return {outcome.name for outcome in self.outcomes if outcome.state == "done"} == set(self.notebooks)

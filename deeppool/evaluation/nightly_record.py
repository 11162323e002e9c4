"""Record of a nightly run: per notebook its outcome, its numbers and its checks."""

import datetime
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from deeppool.errors import InvalidValueError
from deeppool.evaluation.entries import Basis, Check, count_holding

State = Literal["done", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class Observation:
    """A number of one nightly run, compared with the same number of other runs."""

    name: str
    value: float
    unit: str
    basis: Basis
    spread: float = 0.0
    """Half the interquartile range over repetitions, in the number's unit."""
    group: str = ""
    """Numbers of one group were measured together, such as the layers of one profile: a shift that the machine caused
    in all of them is distinguished from a change of one. Empty: the number is compared alone."""


@dataclass(frozen=True, slots=True)
class NotebookOutcome:
    """Outcome of one notebook in a nightly run."""

    name: str
    title: str
    state: State
    problem: str
    """Why it is not done; empty if it is."""
    measures: bool
    """Whether it measures time, and therefore ran alone."""
    parameters: dict[str, Any]
    """Parameters set by the preset."""
    seconds: float
    notebook: str
    """Path of the executed notebook in the run's folder; empty if there is none."""
    html: str
    """Path of its report in the run's folder; empty if there is none."""
    observations: tuple[Observation, ...] = ()
    checks: tuple[Check, ...] = ()
    fingerprint: str = ""
    """Hash of the notebook as it was executed."""


@dataclass(frozen=True)
class NightlyRun:
    """All notebooks of one nightly run: ``night.json``."""

    KIND: ClassVar[str] = "night"

    name: str
    """Name of its folder: a date, with a number from the second run of a day on."""
    preset: str
    device: str
    """The machine; numbers of other machines are not compared."""
    notebooks: tuple[str, ...]
    """Names of all notebooks that the run is to execute."""
    started: str
    """Start in ISO 8601, local time with its offset."""
    finished: str
    """Finish in ISO 8601; empty while the run is not finished."""
    versions: dict[str, str]
    outcomes: tuple[NotebookOutcome, ...]

    def __post_init__(self) -> None:
        try:
            offset = datetime.datetime.fromisoformat(self.started).utcoffset()
        except ValueError:
            offset = None
        if offset is None:
            raise InvalidValueError(f"started must be a date and time with an offset, got '{self.started}'")

    @property
    def start(self) -> datetime.datetime:
        """Moment of the start: unlike its text it is in order whatever the offset, which summer time changes."""
        return datetime.datetime.fromisoformat(self.started)

    def __str__(self) -> str:
        states = Counter(outcome.state for outcome in self.outcomes)
        checks = [check for outcome in self.outcomes for check in outcome.checks]
        parts = [f"{states['done']} of {len(self.notebooks)} notebooks done"]
        parts += [f"{states[state]} {state}" for state in ("failed", "not run") if states[state]]
        parts.append(f"{sum(len(outcome.observations) for outcome in self.outcomes)} numbers")
        parts.append(count_holding(checks))
        return f"{self.name or 'unfinished'} ({self.preset}, {self.device}; {self.started}): {', '.join(parts)}"

    def outcome(self, notebook: str) -> NotebookOutcome | None:
        """Returns the outcome of a notebook; None if the run did not include it."""
        return next((outcome for outcome in self.outcomes if outcome.name == notebook), None)

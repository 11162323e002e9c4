"""What an interrupted measurement keeps: finished iterations, appended one JSON line at a time."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

Times = tuple[tuple[float, float], ...]
"""Forward and backward seconds, per layer."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Iterations of one batch size, in the order in which they were measured."""

    layered: list[Times]
    """With stamps between the layers."""
    whole: list[Times]
    """Without: one pair each, of the whole passes."""

    @property
    def seconds(self) -> tuple[list[float], list[float]]:
        """Of each iteration, layered ones first."""
        layered, whole = ([sum(map(sum, run)) for run in runs] for runs in (self.layered, self.whole))
        return layered, whole


@dataclass(frozen=True, slots=True)
class ResumeState:
    """What an interrupted measurement left."""

    conditions: str
    """Of which model, device and method."""
    iterations: dict[int, int]
    """Finished ones per batch size."""

    def __str__(self) -> str:
        each = ", ".join(f"{count} at batch {batch}" for batch, count in sorted(self.iterations.items()))
        return f"{sum(self.iterations.values())} finished iterations ({each})"


def read_resume_state(path: Path) -> ResumeState | None:
    """What is at ``path``; None where nothing is, or no iteration was finished."""
    conditions, entries = _read(path)
    if not entries:
        return None
    return ResumeState(conditions, dict(Counter(entry.batch for entry in entries)))


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of a log."""

    batch: int
    layered: bool
    times: Times
    line: str


def _read(path: Path) -> tuple[str, list[_Entry]]:
    """The conditions of a log, and its whole lines."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found: list[_Entry] = []
    for line in lines[1:]:
        try:
            batch, layered, times = json.loads(line)
        except ValueError:
            break  # the interruption cut this line short
        found.append(_Entry(batch, layered, tuple((forward, backward) for forward, backward in times), line))
    return (lines[0] if lines else ""), found


class MeasurementLog:
    """Finished iterations of one profile, on disk as soon as they are made.

    A log of another model, device or method is not continued but begun anew: ``conditions`` tells.
    """

    def __init__(self, path: Path | None, conditions: str) -> None:
        """Reads what an earlier, interrupted measurement left at ``path``; with None nothing is kept."""
        self.path = path
        self.runs: dict[int, Runs] = defaultdict(lambda: Runs([], []))
        """Per batch size."""
        if path is None:
            return
        before, entries = _read(path)
        if before != conditions:
            entries = []
        for entry in entries:
            self._keep(entry.batch, entry.layered, entry.times)
        path.write_text("\n".join([conditions, *(entry.line for entry in entries)]) + "\n", encoding="utf-8")

    def add(self, batch: int, layered: bool, times: Times) -> None:
        """Keeps one finished iteration."""
        self._keep(batch, layered, times)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps([batch, layered, times]) + "\n")

    def _keep(self, batch: int, layered: bool, times: Times) -> None:
        (self.runs[batch].layered if layered else self.runs[batch].whole).append(times)

    def remove(self) -> None:
        """The profile is whole and saved: the log has served."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

"""Log of a measurement, from which an interrupted one resumes: finished iterations, one JSON line each."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from deeppool.base import serialization

Times = tuple[tuple[float, float], ...]
"""Forward and backward seconds, per layer."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Measured iterations of one batch size, in order."""

    layered: list[Times]
    """Iterations with time stamps between layers."""
    whole: list[Times]
    """Iterations without, as one pair of the two whole passes."""

    @property
    def seconds(self) -> tuple[list[float], list[float]]:
        """Seconds per iteration, of layered and of whole ones."""
        layered, whole = ([sum(map(sum, run)) for run in runs] for runs in (self.layered, self.whole))
        return layered, whole


@dataclass(frozen=True, slots=True)
class ResumeState:
    """Summary of an interrupted measurement."""

    conditions: str
    """Model, device and method, as JSON."""
    iterations: dict[int, int]
    """Number of finished iterations per batch size."""

    def __str__(self) -> str:
        each = ", ".join(f"{count} at batch {batch}" for batch, count in sorted(self.iterations.items()))
        return f"{sum(self.iterations.values())} finished iterations ({each})"


def read_resume_state(path: Path) -> ResumeState | None:
    """Reads the log at ``path``; None if it does not exist or has no finished iteration."""
    conditions, entries = _read(path)
    if not entries:
        return None
    return ResumeState(conditions, dict(Counter(entry.batch for entry in entries)))


@dataclass(frozen=True, slots=True)
class _Entry:
    """Finished iteration, one line of a log."""

    batch: int
    layered: bool
    times: Times
    line: str


def _read(path: Path) -> tuple[str, list[_Entry]]:
    """Returns the conditions of a log and its complete lines."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found: list[_Entry] = []
    for line in lines[1:]:
        try:
            batch, layered, times = json.loads(line)
        except ValueError:
            break  # an interruption truncated this line
        found.append(_Entry(batch, layered, tuple((forward, backward) for forward, backward in times), line))
    return (lines[0] if lines else ""), found


class MeasurementLog:
    """Finished iterations of one profile, written to disk one by one.

    A log with other ``conditions`` (model, device or method) is overwritten.
    """

    def __init__(self, path: Path | None, conditions: str) -> None:
        """Resumes from the log at ``path``, if any; with None nothing is written."""
        self.path = path
        self._writes = path is not None
        self.runs: dict[int, Runs] = defaultdict(lambda: Runs([], []))
        """Iterations per batch size."""
        if path is None:
            return
        before, entries = _read(path)
        if before != conditions:
            entries = []
        for entry in entries:
            self._append(entry.batch, entry.layered, entry.times)
        # At once: an interruption must not lose the iterations that are known.
        serialization.write_text("\n".join([conditions, *(entry.line for entry in entries)]) + "\n", path)

    def add(self, batch: int, layered: bool, times: Times) -> None:
        """Appends one finished iteration; on a full disk it stays in memory, as do those after it."""
        self._append(batch, layered, times)
        if self.path is not None and self._writes:
            try:
                with self.path.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps([batch, layered, times]) + "\n")
            except OSError:
                self._writes = False

    def _append(self, batch: int, layered: bool, times: Times) -> None:
        (self.runs[batch].layered if layered else self.runs[batch].whole).append(times)

    def remove(self) -> None:
        """Deletes the log, once the profile is saved."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

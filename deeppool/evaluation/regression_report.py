"""Regression report of a nightly run: numbers that changed beyond noise, failed notebooks, checks that do not hold."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from deeppool.evaluation.entries import Basis
from deeppool.evaluation.nightly_record import NightlyRun, NotebookOutcome, Observation
from deeppool.evaluation.number_comparison import HISTORY, SAME, NumberComparison, compare_numbers
from deeppool.evaluation.tables import format_value
from deeppool.planning.report.tables import render, table
from deeppool.units import format_count, format_growth

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class NumberChange:
    """A number that changed beyond its noise."""

    notebook: str
    name: str
    unit: str
    basis: Basis
    value: float
    usual: float
    """Median over earlier runs."""
    change: float | None
    """Change relative to the size of the usual value, positive where it grew; None if that is 0."""
    band: float
    """Half-width of the noise band, in the number's unit."""
    nights: int
    """Earlier runs that the number was compared with."""


@dataclass(frozen=True, slots=True)
class FailedNotebook:
    """A notebook that failed."""

    notebook: str
    problem: str
    since: str
    """First run of the uninterrupted series of runs in which it failed."""


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A check that does not hold."""

    notebook: str
    statement: str
    detail: str
    """The values that decide it, and the reason of an expected failure."""
    held: str | None
    """Last earlier run in which it held; None: in none of those compared."""

    @property
    def history(self) -> str:
        """Returns when the check last held, as text."""
        return f"last held {self.held}" if self.held else "never held"


@dataclass(frozen=True)
class RegressionReport:
    """A nightly run compared with earlier runs of the same preset and device: ``verdict.json``."""

    KIND: ClassVar[str] = "verdict"

    night: str
    preset: str
    device: str
    compared: tuple[str, ...]
    """Names of the earlier runs, the newest last."""
    notebooks: int
    moved: tuple[NumberChange, ...]
    """Numbers that changed, the largest change in noise bands first."""
    broken: tuple[FailedNotebook, ...]
    not_run: tuple[str, ...]
    """Notebooks that were not run, each with the reason."""
    unmet: tuple[FailedCheck, ...]
    """Checks that do not hold, expected failures aside. If an expected failure passes once, later failures count."""
    known: tuple[FailedCheck, ...]
    """Expected failures; they are reported, and fail no run."""
    checks: int
    """Number of checks of the run."""
    gone: tuple[str, ...]
    """Numbers of the previous run that are missing, of notebooks that ran; they are reported, and fail no run."""
    judged: int
    """Count of numbers that were compared."""
    young: int
    """Count of numbers whose history is too short to estimate their noise."""
    versions: tuple[str, ...]
    """Packages whose version changed since the previous run: ``torch 2.13.0 → 2.14.0``."""

    @property
    def fine(self) -> bool:
        """Whether everything ran, no number changed, and every check holds, expected failures aside."""
        return not (self.moved or self.broken or self.not_run or self.unmet)

    def explain(self) -> str:
        """Returns a summary line, and a table for each kind of finding."""
        return render(str(self), *_tables(self))

    def __str__(self) -> str:
        against = f"against {len(self.compared)} earlier" if self.compared else "the first of its kind"
        parts = [
            f"{len(self.moved)} changed" if self.moved else "",
            f"{len(self.broken)} failed" if self.broken else "",
            f"{len(self.not_run)} not run" if self.not_run else "",
            f"{len(self.unmet)} of {self.checks} checks do not hold" if self.unmet else "",
        ]
        findings = ", ".join(filter(None, parts)) or "nothing changed, nothing failed"
        if self.known:
            findings += f", {len(self.known)} of {self.checks} checks do not hold, as expected"
        young = f", {self.young} too new to compare" if self.young else ""
        return (
            f"{self.night} ({self.preset}, {self.device}; {against}): {findings}; "
            f"{format_count(self.notebooks, 'notebook')}, {format_count(self.judged, 'number')} compared{young}"
        )


def compare_with_earlier(run: NightlyRun, history: Sequence[NightlyRun]) -> RegressionReport:
    """Compares a nightly run with earlier ones.

    Args:
        run: the run.
        history: earlier runs in any order; of those with the same preset and device the newest :data:`HISTORY` are
            used. A notebook that ran with other parameters is not compared.
    """
    earlier = sorted(
        (x for x in history if (x.preset, x.device) == (run.preset, run.device) and x.name != run.name),
        key=lambda each: each.start,
    )[-HISTORY:]
    changes: list[tuple[float, NumberChange]] = []
    gone: list[str] = []
    compared = young = 0
    for outcome in run.outcomes:
        if outcome.state != "done":
            continue
        past = [x for x in (each.outcome(outcome.name) for each in earlier) if x and _is_comparable(x, outcome)]
        comparisons, too_new = compare_numbers(outcome.observations, _by_name(past))
        compared, young = compared + len(comparisons), young + len(too_new)
        changes += [(_in_bands(x), _number_change(outcome, x)) for x in comparisons if x.changed]
        if past:
            gone += _missing_numbers(past[-1], outcome)
    return RegressionReport(
        night=run.name,
        preset=run.preset,
        device=run.device,
        compared=tuple(each.name for each in earlier),
        notebooks=len(run.outcomes),
        moved=tuple(change for _, change in sorted(changes, key=lambda pair: -pair[0])),
        broken=tuple(_failed_notebook(x, run, earlier) for x in run.outcomes if x.state == "failed"),
        not_run=tuple(f"{x.name}: {x.problem}" for x in run.outcomes if x.state == "not run"),
        unmet=tuple(_failed_checks(run, earlier, expected=False)),
        known=tuple(_failed_checks(run, earlier, expected=True)),
        checks=sum(len(outcome.checks) for outcome in run.outcomes),
        gone=tuple(gone),
        judged=compared,
        young=young,
        versions=_changed_versions(run, earlier),
    )


def _is_comparable(past: NotebookOutcome, current: NotebookOutcome) -> bool:
    return past.state == "done" and past.parameters == current.parameters


def _by_name(past: Sequence[NotebookOutcome]) -> dict[str, list[Observation]]:
    found: dict[str, list[Observation]] = defaultdict(list)
    for outcome in past:
        for observation in outcome.observations:
            found[observation.name].append(observation)
    return found


def _in_bands(comparison: NumberComparison) -> float:
    difference = abs(comparison.observation.value - comparison.usual)
    return difference / comparison.band if comparison.band else float("inf")


def _number_change(outcome: NotebookOutcome, comparison: NumberComparison) -> NumberChange:
    number = comparison.observation
    return NumberChange(
        notebook=outcome.name,
        name=number.name,
        unit=number.unit,
        basis=number.basis,
        value=number.value,
        usual=comparison.usual,
        change=(number.value - comparison.usual) / abs(comparison.usual) if comparison.usual else None,
        band=comparison.band,
        nights=comparison.runs,
    )


def _missing_numbers(past: NotebookOutcome, current: NotebookOutcome) -> list[str]:
    names = {observation.name for observation in current.observations}
    return [f"{current.name}: {each.name}" for each in past.observations if each.name not in names]


def _failed_notebook(outcome: NotebookOutcome, run: NightlyRun, earlier: Sequence[NightlyRun]) -> FailedNotebook:
    since = run.name
    for past in reversed(earlier):
        before = past.outcome(outcome.name)
        if before is not None and before.state == "done":
            break
        if before is not None and before.state == "failed":
            since = past.name
    return FailedNotebook(outcome.name, outcome.problem, since)


def _failed_checks(run: NightlyRun, earlier: Sequence[NightlyRun], *, expected: bool) -> list[FailedCheck]:
    found = []
    for outcome in run.outcomes:
        for check in outcome.checks:
            if check.holds:
                continue
            held = [
                past.name
                for past in earlier
                if (before := past.outcome(outcome.name)) is not None
                and any(x.statement == check.statement and x.shows for x in before.checks)
            ]
            # If an expected failure passed once, later failures count.
            if expected is bool(check.known and not held):
                detail = "; ".join(filter(None, (check.detail, check.known)))
                found.append(FailedCheck(outcome.name, check.statement, detail, held[-1] if held else None))
    return found


def _changed_versions(run: NightlyRun, earlier: Sequence[NightlyRun]) -> tuple[str, ...]:
    if not earlier:
        return ()
    before = earlier[-1].versions
    names = sorted({*before, *run.versions})
    return tuple(
        f"{name} {before.get(name, 'absent')} → {run.versions.get(name, 'absent')}"
        for name in names
        if before.get(name) != run.versions.get(name)
    )


CHANGE_HEADINGS = ("number", "usual", "now", "change", "noise", "runs")


def change_row(number: NumberChange) -> tuple[str, ...]:
    """Returns the cells under :data:`CHANGE_HEADINGS`."""
    if number.band <= SAME * abs(number.usual):
        noise = "none"
    elif number.usual:
        noise = f"±{100 * number.band / abs(number.usual):.2g} %"
    else:
        noise = f"±{format_value(number.band, number.unit)}"
    return (
        f"{number.notebook}: {number.name}",
        format_value(number.usual, number.unit),
        format_value(number.value, number.unit),
        "–" if number.change is None else format_growth(number.change),
        noise,
        str(number.nights),
    )


def _tables(report: RegressionReport, rows: int = 30) -> list["Table"]:
    tables = []
    if report.moved:
        changes = table(*CHANGE_HEADINGS)
        for number in report.moved[:rows]:
            changes.add_row(*change_row(number))
        tables.append(changes)
    lines = {
        "failed": [(f"{x.notebook}: {x.problem}", f"since {x.since}") for x in report.broken],
        "not run": [(x, "") for x in report.not_run],
        "check": [(f"{x.notebook}: {x.statement} does not hold ({x.detail})", x.history) for x in report.unmet],
        "expected failures": [(f"{x.notebook}: {x.statement} ({x.detail})", x.history) for x in report.known],
        "installed since the last run": [(x, "") for x in report.versions],
        "no longer reported": [(x, "") for x in report.gone[:rows]],
    }
    for heading, pairs in lines.items():
        if pairs:
            made = table(heading, "")
            for pair in pairs:
                made.add_row(*pair)
            tables.append(made)
    return tables

"""Tonight against the nights before: which numbers moved, which notebooks broke, which checks no longer hold."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from deeppool.evaluation.nightly_record import NightlyRun, Observation, Outcome
from deeppool.evaluation.noise import HISTORY, SAME, Judgement, judge
from deeppool.evaluation.record import Basis
from deeppool.evaluation.report import format_value
from deeppool.planning.report.tables import render, table
from deeppool.units import format_percent

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class NumberChange:
    """A number that moved beyond its own noise."""

    notebook: str
    name: str
    unit: str
    basis: Basis
    value: float
    usual: float
    """Median over its nights."""
    change: float | None
    """As a share of the usual; None where that is 0."""
    band: float
    """That noise explains, to either side; in the number's unit."""
    nights: int
    """In its history."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A notebook that failed."""

    notebook: str
    problem: str
    since: str
    """The first night of those that it failed in without a break; tonight when it is new."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """A check that does not hold tonight."""

    notebook: str
    statement: str
    detail: str
    """The values that decide it; and why, where that is known."""
    held: str | None
    """The last night in which it did; None: in none that is kept."""

    @property
    def history(self) -> str:
        """When it last held, in words."""
        return f"last held {self.held}" if self.held else "never held"


@dataclass(frozen=True)
class RegressionReport:
    """What a night says beside the nights before it, of the same preset and device: ``compare_with_earlier.json``."""

    KIND: ClassVar[str] = "verdict"

    night: str
    preset: str
    device: str
    compared: tuple[str, ...]
    """Nights, the latest last."""
    notebooks: int
    moved: tuple[NumberChange, ...]
    """Those that moved most, in bands, first."""
    broken: tuple[Broken, ...]
    not_run: tuple[str, ...]
    """Notebooks, each with the reason."""
    unmet: tuple[Unmet, ...]
    """Without those that are known not to hold, unless they did."""
    known: tuple[Unmet, ...]
    """Checks that do not hold, as their notebooks say they would; told, and held against nobody."""
    checks: int
    """Of tonight."""
    gone: tuple[str, ...]
    """Numbers that the last night had, of notebooks that ran tonight; told, and held against nobody."""
    judged: int
    """Numbers that were compared."""
    young: int
    """Numbers whose history is too short to say what their noise is."""
    versions: tuple[str, ...]
    """What was installed anew since the last night: ``torch 2.13.0 → 2.14.0``."""

    @property
    def fine(self) -> bool:
        """Everything ran, nothing moved, every check holds but for those that are known not to."""
        return not (self.moved or self.broken or self.not_run or self.unmet)

    def explain(self) -> str:
        """The line, and a table for each kind of trouble."""
        return render(str(self), *_tables(self))

    def __str__(self) -> str:
        against = f"against {len(self.compared)} earlier" if self.compared else "the first of its kind"
        words = [
            f"{len(self.moved)} moved" if self.moved else "",
            f"{len(self.broken)} broke" if self.broken else "",
            f"{len(self.not_run)} did not run" if self.not_run else "",
            f"{len(self.unmet)} of {self.checks} checks do not hold" if self.unmet else "",
        ]
        told = ", ".join(filter(None, words)) or "nothing moved, nothing broke"
        if self.known:
            told += f", {len(self.known)} of {self.checks} checks do not hold, as is known"
        young = f", {self.young} too new to judge" if self.young else ""
        return (
            f"{self.night} ({self.preset}, {self.device}; {against}): {told}; "
            f"{self.notebooks} notebooks, {self.judged} numbers judged{young}"
        )


def compare_with_earlier(tonight: NightlyRun, history: Sequence[NightlyRun]) -> RegressionReport:
    """Judges a night.

    Args:
        tonight: the night.
        history: earlier nights, in any order; those of another preset or device are left out, and of the rest the
            latest :data:`HISTORY` count. A notebook that ran with other parameters is not compared.
    """
    nights = sorted(
        (x for x in history if (x.preset, x.device) == (tonight.preset, tonight.device) and x.name != tonight.name),
        key=lambda night: night.started,
    )[-HISTORY:]
    moved: list[tuple[float, NumberChange]] = []
    gone: list[str] = []
    judged = young = 0
    for outcome in tonight.outcomes:
        if outcome.state != "done":
            continue
        past = [x for x in (night.outcome(outcome.name) for night in nights) if x and _comparable(x, outcome)]
        judgements, too_new = judge(outcome.observations, _by_name(past))
        judged, young = judged + len(judgements), young + len(too_new)
        moved += [(_bands(x.observation.value, x.usual, x.band), _move(outcome, x)) for x in judgements if x.moved]
        if past:
            gone += _gone(past[-1], outcome)
    return RegressionReport(
        night=tonight.name,
        preset=tonight.preset,
        device=tonight.device,
        compared=tuple(night.name for night in nights),
        notebooks=len(tonight.outcomes),
        moved=tuple(move for _, move in sorted(moved, key=lambda pair: -pair[0])),
        broken=tuple(_broken(x, tonight, nights) for x in tonight.outcomes if x.state == "failed"),
        not_run=tuple(f"{x.name}: {x.problem}" for x in tonight.outcomes if x.state == "not run"),
        unmet=tuple(_unmet(tonight, nights, known=False)),
        known=tuple(_unmet(tonight, nights, known=True)),
        checks=sum(len(outcome.checks) for outcome in tonight.outcomes),
        gone=tuple(gone),
        judged=judged,
        young=young,
        versions=_changed_versions(tonight, nights),
    )


def _comparable(past: Outcome, tonight: Outcome) -> bool:
    return past.state == "done" and past.parameters == tonight.parameters


def _by_name(past: Sequence[Outcome]) -> dict[str, list[Observation]]:
    found: dict[str, list[Observation]] = defaultdict(list)
    for outcome in past:
        for observation in outcome.observations:
            found[observation.name].append(observation)
    return found


def _bands(value: float, usual: float, band: float) -> float:
    return abs(value - usual) / band if band else float("inf")


def _move(outcome: Outcome, judgement: Judgement) -> NumberChange:
    seen = judgement.observation
    return NumberChange(
        notebook=outcome.name,
        name=seen.name,
        unit=seen.unit,
        basis=seen.basis,
        value=seen.value,
        usual=judgement.usual,
        change=seen.value / judgement.usual - 1 if judgement.usual else None,
        band=judgement.band,
        nights=judgement.nights,
    )


def _gone(past: Outcome, tonight: Outcome) -> list[str]:
    here = {observation.name for observation in tonight.observations}
    return [f"{tonight.name}: {each.name}" for each in past.observations if each.name not in here]


def _broken(outcome: Outcome, tonight: NightlyRun, nights: Sequence[NightlyRun]) -> Broken:
    since = tonight.name
    for night in reversed(nights):
        before = night.outcome(outcome.name)
        if before is not None and before.state == "done":
            break
        if before is not None and before.state == "failed":
            since = night.name
    return Broken(outcome.name, outcome.problem, since)


def _unmet(tonight: NightlyRun, nights: Sequence[NightlyRun], *, known: bool) -> list[Unmet]:
    found = []
    for outcome in tonight.outcomes:
        for check in outcome.checks:
            if check.holds:
                continue
            held = [
                night.name
                for night in nights
                if (before := night.outcome(outcome.name)) is not None
                and any(x.statement == check.statement and x.holds for x in before.checks)
            ]
            # What held before is news, whatever is known.
            if known is bool(check.known and not held):
                detail = "; ".join(filter(None, (check.detail, check.known)))
                found.append(Unmet(outcome.name, check.statement, detail, held[-1] if held else None))
    return found


def _changed_versions(tonight: NightlyRun, nights: Sequence[NightlyRun]) -> tuple[str, ...]:
    if not nights:
        return ()
    before = nights[-1].versions
    names = sorted({*before, *tonight.versions})
    return tuple(
        f"{name} {before.get(name, 'absent')} → {tonight.versions.get(name, 'absent')}"
        for name in names
        if before.get(name) != tonight.versions.get(name)
    )


MOVED_HEADINGS = ("moved", "usual", "tonight", "change", "noise", "nights")


def moved_row(move: NumberChange) -> tuple[str, ...]:
    """A move as cells of a table."""
    if move.band <= SAME * abs(move.usual):
        noise = "none"
    elif move.usual:
        noise = f"±{100 * move.band / abs(move.usual):.2g} %"
    else:
        noise = f"±{format_value(move.band, move.unit)}"
    return (
        f"{move.notebook}: {move.name}",
        format_value(move.usual, move.unit),
        format_value(move.value, move.unit),
        "–" if move.change is None else format_percent(move.change),
        noise,
        str(move.nights),
    )


def _tables(found: RegressionReport, rows: int = 30) -> list["Table"]:
    tables = []
    if found.moved:
        moves = table(*MOVED_HEADINGS)
        for move in found.moved[:rows]:
            moves.add_row(*moved_row(move))
        tables.append(moves)
    lines = {
        "broke": [(f"{x.notebook}: {x.problem}", f"since {x.since}") for x in found.broken],
        "did not run": [(x, "") for x in found.not_run],
        "check": [(f"{x.notebook}: {x.statement} does not hold ({x.detail})", x.history) for x in found.unmet],
        "differs, as is known": [(f"{x.notebook}: {x.statement} ({x.detail})", x.history) for x in found.known],
        "since the last night": [(x, "") for x in found.versions],
        "no longer told": [(x, "") for x in found.gone[:rows]],
    }
    for heading, pairs in lines.items():
        if pairs:
            made = table(heading, "")
            for pair in pairs:
                made.add_row(*pair)
            tables.append(made)
    return tables

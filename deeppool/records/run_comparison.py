"""Comparison of two live runs: figures that differ, and differences that noise explains."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from deeppool.base.arguments import typed
from deeppool.records.run_record import Phase, RunRecord, TimeSummary
from deeppool.units import format_growth, format_rate, format_seconds, format_tables

if TYPE_CHECKING:
    from rich.table import Table

Unit = Literal["s", "samples/s", "share", "1"]
"""Unit of a figure: seconds; samples per second; a fraction printed as percent; a dimensionless number."""


@dataclass(frozen=True, slots=True)
class FigureChange:
    """Change of one figure between two runs."""

    name: str
    unit: Unit
    before: float | None
    """Value in the earlier run, or None if it has no such figure."""
    after: float | None
    noise: float | None
    """95 % bound on a difference that noise alone explains, in the figure's unit, from the variation between the rounds
    of each run. None if unknown."""

    @property
    def change(self) -> float | None:
        """Returns the later value minus the earlier one."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def verdict(self) -> Literal["beyond noise", "within noise", "noise unknown", "in one run only", "equal"]:
        """Returns a description of the change relative to the noise."""
        if self.change is None:
            return "in one run only"
        if self.change == 0:
            return "equal"
        if self.noise is None:
            return "noise unknown"
        return "beyond noise" if abs(self.change) > self.noise else "within noise"


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Comparison of two runs: settings and figures that differ."""

    KIND: ClassVar[str] = "run-comparison"

    before: str
    """Models, device and date of the run."""
    after: str
    settings: tuple[tuple[str, str, str], ...]
    """Settings that differ: name, before, after. Each may be the reason why figures differ."""
    figures: tuple[FigureChange, ...]

    def explain(self) -> str:
        """Formats the settings that differ and all figures as tables."""
        settings = _table("setting", "before", "after")
        for row in self.settings:
            settings.add_row(*row)
        found = _table("figure", "before", "after", "change", "noise explains", "")
        for change in self.figures:
            before, after = (format_value(value, change.unit) for value in (change.before, change.after))
            noise = "–" if change.noise is None else f"±{format_value(change.noise, change.unit)}"
            found.add_row(change.name, before, after, format_change(change), noise, change.verdict)
        heading = f"before  {self.before}\nafter   {self.after}\n\n"
        tables = [settings, found] if self.settings else [found]
        return heading + "\n".join(format_tables(table, width=200) + "\n" for table in tables)

    def __str__(self) -> str:
        surely = [change for change in self.figures if change.verdict == "beyond noise"]
        changes = ", ".join(f"{change.name} {format_change(change)}" for change in surely) or "nothing"
        return f"{self.before} → {self.after}: {changes} beyond noise"


@typed
def compare_runs(before: RunRecord, after: RunRecord) -> RunComparison:
    """Compares two runs, of any models.

    Noise is what differs between the rounds of each run (:mod:`deeppool.records.confidence_interval`). What differs
    between two starts on one machine, or two days, is not in it.
    """
    settings = [
        (name, str(old), str(new))
        for (name, old), new in zip(_settings(before).items(), _settings(after).values(), strict=True)
        if old != new
    ]
    return RunComparison(_what(before), _what(after), tuple(settings), tuple(_figures(before, after)))


def format_value(value: float | None, unit: Unit) -> str:
    """Formats a figure with its unit; a dash stands for None."""
    if value is None:
        return "–"
    if unit == "s":
        return format_seconds(value)
    if unit == "samples/s":
        return f"{format_rate(value)} samples/s"
    return f"{100 * value:.1f} %" if unit == "share" else f"{value:.3g}"


def format_change(change: FigureChange) -> str:
    """Formats a change: times and throughputs in percent of the earlier value, shares in points."""
    if change.change is None or change.before is None:
        return "–"
    if change.unit == "share":
        return f"{100 * change.change:+.1f} points"
    return format_growth(change.change / change.before) if change.before else f"{change.change:+.3g}"


def _table(*headings: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if 0 < number < len(headings) - 1 else "left", no_wrap=True)
    return table


def _what(run: RunRecord) -> str:
    background = "alone" if run.background is None else f"beside {run.background.model}"
    return f"{run.model} {background} ({run.date.replace('T', ' ')})"


def _settings(run: RunRecord) -> dict[str, object]:
    back = run.background
    return {
        "model": run.model,
        "global batch": run.global_batch,
        "ranks": run.ranks,
        "cores": run.cores,
        "device": run.device_name,
        "emulated rank": run.emulated_rank,
        "policy": run.policy,
        "mechanisms": run.sharing,
        "background": None if back is None else back.model,
        "its batch": None if back is None else back.batch,
        "its priority": None if back is None else back.priority,
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items())),
    }


def _figures(before: RunRecord, after: RunRecord) -> list[FigureChange]:
    old, new = before.foreground, after.foreground
    found = [
        _time("iteration time, mean", old.iteration_time, new.iteration_time),
        FigureChange("iteration time, p99", "s", old.iteration_time.p99, new.iteration_time.p99, None),
        _time("alone, mean", old.alone.iteration_time, new.alone.iteration_time),
        FigureChange(
            "slowdown", "share", old.slowdown, new.slowdown, _both(_slowdown_margin(before), _slowdown_margin(after))
        ),
        FigureChange("idle when alone", "share", _idle(old.alone), _idle(new.alone), None),
        FigureChange("planned iteration time", "s", before.plan_iteration_time, after.plan_iteration_time, 0.0),
    ]
    back, other = before.background, after.background
    if back is None and other is None:
        return found
    named: tuple[tuple[str, Unit, str, str | None], ...] = (
        ("background throughput", "samples/s", "throughput", None),
        ("background throughput alone", "samples/s", "alone_throughput", None),
        ("harvest", "share", "harvest", "harvest_margin"),
        ("harvest of idle time", "share", "harvest_of_idle", None),
    )
    for name, unit, field, margin in named:
        values = [None if one is None else getattr(one, field) for one in (back, other)]
        margins = [None if one is None or margin is None else getattr(one, margin) for one in (back, other)]
        found.append(FigureChange(name, unit, values[0], values[1], _both(*margins)))
    return found


def _time(name: str, before: TimeSummary, after: TimeSummary) -> FigureChange:
    return FigureChange(name, "s", before.mean, after.mean, _both(before.margin, after.margin))


def _slowdown_margin(run: RunRecord) -> float | None:
    return 0.0 if run.background is None else run.foreground.slowdown_margin


def _both(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else math.hypot(before, after)


def _idle(phase: Phase) -> float:
    return sum(phase.idle_share) / len(phase.idle_share)

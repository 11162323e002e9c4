"""A record, or two of them compared, as a figure and a text; without a widget, so that a test can ask."""

from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from deeppool import figures
from deeppool.base.timeline import Timeline
from deeppool.errors import InvalidValueError
from deeppool.figures.labels import shorten
from deeppool.planning.plan import Plan
from deeppool.planning.report.diff import PlanDiff, diff
from deeppool.profiling.comparison import ProfileComparison, compare_profiles
from deeppool.profiling.table import Profile
from deeppool.records.run_comparison import RunComparison, compare_runs
from deeppool.records.run_record import RunRecord

Comparison = PlanDiff | RunComparison | ProfileComparison


@dataclass(frozen=True, slots=True)
class View:
    """What is to be seen."""

    figure: go.Figure | None
    """None: this kind has none."""
    text: str
    """Lines of fixed width."""
    comparison: Comparison | None = None
    """Where two records are compared."""


def view(record: Any, *, dark: bool = False) -> View:
    """One record of any kind."""
    text = record.explain() if isinstance(record, Plan) else str(record)
    try:
        return View(figures.of(record, dark=dark), text)
    except InvalidValueError:
        return View(None, text)


def view_both(before: Any, after: Any, *, dark: bool = False) -> View:
    """Two records of one kind: plans, runs or profiles.

    Raises:
        InvalidValueError: they are of different kinds, or of one that is not compared.
        PlanError: plans of different models.
    """
    match before, after:
        case Plan(), Plan():
            changes = diff(before, after)
            figure = figures.timeline(before, after, title="Before, and below it after", dark=dark)
            return View(figure, changes.explain(), changes)
        case RunRecord(), RunRecord():
            found = compare_runs(before, after)
            above, below = _named(before, "before"), _named(after, "after")
            figure = figures.timeline(above, below, title="One measured iteration of each run", dark=dark)
            return View(figure, found.explain(), found)
        case Profile(), Profile():
            compared = compare_profiles(before, after)
            return View(None, compared.explain(), compared)
    raise InvalidValueError(
        f"a {type(before).__name__} and a {type(after).__name__} cannot be compared "
        "(choose two plans, two runs, or two profiles)"
    )


def _named(run: RunRecord, name: str) -> Timeline:
    return replace(run.timeline, title=f"{name}: {shorten(run.model)}, policy {run.policy}, {run.date}")

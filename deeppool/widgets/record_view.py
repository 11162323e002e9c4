"""One record, or two compared, as a figure and a text, independent of any widget."""

from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from deeppool import figures
from deeppool.base.timeline import Timeline
from deeppool.errors import InvalidValueError
from deeppool.figures.formatting import shorten
from deeppool.planning.plan import Plan
from deeppool.planning.report.diff import PlanDiff, diff
from deeppool.profiling.comparison import ProfileComparison, compare_profiles
from deeppool.profiling.table import Profile
from deeppool.records.run_comparison import RunComparison, compare_runs
from deeppool.records.run_record import RunRecord

Comparison = PlanDiff | RunComparison | ProfileComparison


@dataclass(frozen=True, slots=True)
class RecordView:
    """The figure and text that present one or two records."""

    figure: go.Figure | None
    """Figure of the record; None if there is none for its kind."""
    text: str
    """Lines for a fixed-width font."""
    comparison: Comparison | None = None
    """Result of comparing two records."""


def record_view(record: Any, *, dark: bool = False) -> RecordView:
    """Presents one record of any kind."""
    text = record.explain() if isinstance(record, Plan) else str(record)
    try:
        return RecordView(figures.of(record, dark=dark), text)
    except InvalidValueError:
        return RecordView(None, text)


def comparison_view(before: Any, after: Any, *, dark: bool = False) -> RecordView:
    """Compares two plans, runs or profiles.

    Raises:
        InvalidValueError: the records are of different kinds, or of a kind that cannot be compared.
        PlanError: plans of different models.
    """
    match before, after:
        case Plan(), Plan():
            changes = diff(before, after)
            figure = figures.timeline(before, after, title="Before, and below it after", dark=dark)
            return RecordView(figure, changes.explain(), changes)
        case RunRecord(), RunRecord():
            found = compare_runs(before, after)
            above, below = _named(before, "before"), _named(after, "after")
            figure = figures.timeline(above, below, title="One measured iteration of each run", dark=dark)
            return RecordView(figure, found.explain(), found)
        case Profile(), Profile():
            compared = compare_profiles(before, after)
            return RecordView(None, compared.explain(), compared)
    raise InvalidValueError(
        f"a {type(before).__name__} and a {type(after).__name__} cannot be compared "
        "(choose two plans, two runs, or two profiles)"
    )


def _named(run: RunRecord, name: str) -> Timeline:
    return replace(run.timeline, title=f"{name}: {shorten(run.model)}, policy {run.policy}, {run.date}")

"""One record, or two compared, as a figure and a text, independent of any widget."""

from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from deeppool import figures
from deeppool.advice.card import text_with_card
from deeppool.base.timeline import Timeline
from deeppool.errors import InvalidValueError
from deeppool.figures.formatting import shorten
from deeppool.planning.plan import Plan
from deeppool.planning.report.comparison import Comparison, compare_records
from deeppool.records.run_record import RunRecord


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
    try:
        return RecordView(figures.of(record, dark=dark), text_with_card(record))
    except InvalidValueError:
        return RecordView(None, text_with_card(record))


def comparison_view(before: Any, after: Any, *, dark: bool = False) -> RecordView:
    """Compares two records of one kind, with a figure of two plans or two runs.

    Raises:
        InvalidValueError: the records are of different kinds.
        PlanError: plans of different models.
    """
    found = compare_records(before, after)
    figure = None
    match before, after:
        case Plan(), Plan():
            figure = figures.timeline(before, after, title="Before, and below it after", dark=dark)
        case RunRecord(), RunRecord():
            above, below = _named(before, "before"), _named(after, "after")
            figure = figures.timeline(above, below, title="One measured iteration of each run", dark=dark)
    return RecordView(figure, found.explain(), found)


def _named(run: RunRecord, name: str) -> Timeline:
    return replace(run.timeline, title=f"{name}: {shorten(run.model)}, policy {run.policy}, {run.date}")

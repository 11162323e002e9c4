"""Loss and time of every update of a training, with the planned time."""

from itertools import pairwise

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, escape, time_unit
from deeppool.records.training_record import TrainingRecord
from deeppool.units import format_count, format_seconds


@typed
def training(record: TrainingRecord, *, dark: bool = False) -> go.Figure:
    """Draws the loss of every update (top), and its time with the planned time (bottom).

    A dotted line is where the training went on with another number of ranks; the planned time is that of the last plan.

    Args:
        record: record of a ``dp.train`` call.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a training's record.
    """
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.08)
    unit = time_unit(max(record.planned_time, *(update.seconds for update in record.metrics)))
    figure.add_trace(_loss(record), row=1, col=1)
    figure.add_trace(_seconds(record, unit, theme.neutral(dark=dark)), row=2, col=1)
    figure.add_trace(_planned(record, unit, theme.neutral(dark=dark)), row=2, col=1)
    for update, ranks in _changes(record):
        line = {"dash": "dot", "width": 1.5, "color": theme.neutral(dark=dark)}
        figure.add_vline(x=update - 0.5, line=line, row="all", col=1)
        text = format_count(ranks, "rank")
        figure.add_annotation(text=text, x=update, xanchor="left", y=1, yref="y domain", showarrow=False)
    figure.update_yaxes(title_text="loss (mean of the samples)", row=1, col=1)
    figure.update_yaxes(title_text=f"time of an update ({unit.name})", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title_text="update", row=2, col=1)
    measured_with = f"{format_count(record.ranks, 'rank')}{' at the end' if _changes(record) else ''}"
    return theme.apply_theme(
        figure,
        title=f"{escape(record.model)}, global batch {record.global_batch}",
        subtitle=f"<b>measured</b> with {measured_with} on {format_count(record.cores, 'core')} of "
        f"{escape(record.device_name)}, {record.date[:10]}",
        plot_height=400,
        dark=dark,
    )


def _changes(record: TrainingRecord) -> list[tuple[int, int]]:
    """Returns the first update and the number of ranks of each attempt that had another number than the one before."""
    return [
        (after.resumed_after + 1, len(after.gpus))
        for before, after in pairwise(record.attempts)
        if len(before.gpus) != len(after.gpus)
    ]


def _loss(record: TrainingRecord) -> go.Scatter:
    return go.Scatter(
        name="loss",
        mode="lines+markers",
        line={"color": theme.BLUE, "width": 1.5},
        marker={"size": 4},
        x=[update.update for update in record.metrics],
        # An update skipped because of an fp16 overflow is a gap.
        y=[update.loss for update in record.metrics],
        hovertemplate="update %{x}: loss %{y:.4f}<extra></extra>",
    )


def _seconds(record: TrainingRecord, unit: TimeUnit, colour: str) -> go.Scatter:
    return go.Scatter(
        name="time of an update",
        mode="markers",
        marker={"size": 5, "color": colour},
        x=[update.update for update in record.metrics],
        y=[unit.of(update.seconds) for update in record.metrics],
        customdata=[format_seconds(update.seconds) for update in record.metrics],
        hovertemplate="update %{x}: %{customdata}<extra></extra>",
    )


def _planned(record: TrainingRecord, unit: TimeUnit, colour: str) -> go.Scatter:
    planned = record.planned_time
    changes = _changes(record)
    first = changes[-1][0] if changes else record.metrics[0].update
    last = record.metrics[-1].update
    return go.Scatter(
        name="planned (predicted)" if record.plan_update_time else "planned, without the optimizer (predicted)",
        mode="lines",
        line={"dash": "dash", "color": colour, "width": 1.5},
        x=[first, last],
        y=[unit.of(planned)] * 2,
        hovertemplate=f"planned: {format_seconds(planned)}<extra></extra>",
    )

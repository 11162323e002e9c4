"""Jobs that cross over: what each rank computes, and beneath it whose gradients are in flight."""

from collections.abc import Sequence

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, escape, shorten, time_unit
from deeppool.interleaving.crossover.comparison_record import CrossoverComparison
from deeppool.interleaving.crossover.record import CrossoverRecord, CrossoverSpan
from deeppool.units import format_count, format_seconds

_ROWS = ("computes", "transfers")
"""Rows of a rank, from the top."""


@typed
def crossover(record: CrossoverRecord | CrossoverComparison, *, dark: bool = False) -> go.Figure:
    """Draws a few rounds on every rank, with a colour for each job.

    Args:
        record: a training by :class:`deeppool.CrossoverScheduler`, or a comparison of orders.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else, or a record too short to have rounds of all jobs.
    """
    spans = record.spans
    if not spans:
        raise InvalidValueError("the record has no rounds to draw (train for some more steps)")
    unit = time_unit(max(span.end for span in spans))
    jobs = list(dict.fromkeys(span.job for span in spans))
    figure = go.Figure(
        [
            _trace([span for span in spans if span.job == job], job, theme.OF_MANY[number % len(theme.OF_MANY)], unit)
            for number, job in enumerate(jobs)
        ]
    )
    labels = [f"rank {rank} {row}" for rank in range(record.ranks) for row in _ROWS]
    figure.update_xaxes(title_text=f"time ({unit.name})", rangemode="tozero")
    figure.update_yaxes(theme.named_rows(labels))
    return theme.apply_theme(
        figure,
        title="Jobs that cross over, rank by rank",
        subtitle=f"<b>measured</b> on {format_count(record.ranks, 'rank')} of {escape(record.device_name)}; a transfer "
        "begins when the last rank begins it",
        plot_height=max(150, 34 * len(labels)),
        dark=dark,
    )


def _trace(spans: Sequence[CrossoverSpan], job: str, colour: str, unit: TimeUnit) -> go.Bar:
    return go.Bar(
        orientation="h",
        name=escape(shorten(job)),
        y=[len(_ROWS) * span.rank + (span.kind == "transfer") for span in spans],
        base=[unit.of(span.start) for span in spans],
        x=[unit.of(span.end - span.start) for span in spans],
        width=0.84,
        marker={
            "color": colour,
            # Paler where the link works for the job, and not the rank.
            "opacity": [0.55 if span.kind == "transfer" else 1.0 for span in spans],
        },
        customdata=[
            [span.kind, span.round, format_seconds(span.start), format_seconds(span.end - span.start), escape(job)]
            for span in spans
        ],
        hovertemplate="<b>%{customdata[4]}</b>: %{customdata[0]} of round %{customdata[1]}<br>"
        "starts at %{customdata[2]}, takes %{customdata[3]}, measured<extra></extra>",
    )

"""Steps that a global batch needs to a target accuracy."""

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.planning.studies.steps_to_accuracy import CriticalBatch, FixedSamples, StepsTable

BEYOND = 64
"""Factor from the critical batch to both ends of the axis."""


@typed
def steps(record: CriticalBatch | FixedSamples | StepsTable, *, dark: bool = False) -> go.Figure:
    """Draws steps over the global batch, next to perfect scaling, with which a double batch halves them.

    Args:
        record: a model of the steps, or measured ones.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    batches = _batches(record)
    needed = [record.steps(batch) for batch in batches]
    figure = go.Figure(
        go.Scatter(
            name="perfect scaling",
            mode="lines",
            x=batches,
            y=[needed[0] * batches[0] / batch for batch in batches],
            line={"dash": "dot", "width": 1.5, "color": theme.neutral(dark=dark)},
            hoverinfo="skip",
        )
    )
    measured = isinstance(record, StepsTable)
    figure.add_scatter(
        name="between measured batches" if measured else "steps",
        mode="lines",
        x=batches,
        y=needed,
        line={"color": theme.BLUE},
        hovertemplate="batch %{x:,}: %{y:,} steps<extra></extra>",
    )
    if isinstance(record, StepsTable):
        figure.add_scatter(
            name="measured",
            mode="markers",
            x=[batch for batch, _ in record.pairs],
            y=[count for _, count in record.pairs],
            marker={"size": 8, "color": theme.BLUE},
            hovertemplate="batch %{x:,}: %{y:,} steps, measured<extra></extra>",
        )
    if isinstance(record, CriticalBatch) and record.critical_batch > 0:
        figure.add_vline(
            x=record.critical_batch,
            line={"dash": "dash", "width": 1.5, "color": theme.VERMILLION},
            annotation={"text": "critical batch", "font": {"color": theme.VERMILLION}},
        )
    drawn = [count for trace in figure.data for count in trace.y]
    figure.update_xaxes(title_text="global batch (samples, log)", type="log", **theme.log_ticks(batches))
    figure.update_yaxes(title_text="steps (log)", type="log", **theme.log_ticks(drawn))
    return theme.apply_theme(
        figure,
        title=f"{escape(record.name)}: steps to the target",
        subtitle=escape(record.source),
        plot_height=320,
        dark=dark,
    )


def _batches(record: CriticalBatch | FixedSamples | StepsTable) -> list[int]:
    """Returns batches that are a quarter of a power of two apart, both ends included."""
    match record:
        case CriticalBatch():
            middle = max(1.0, record.critical_batch)
            first, last = max(1, int(middle / BEYOND)), int(middle * BEYOND)
        case FixedSamples():
            first, last = 1, record.largest_batch
        case StepsTable():
            first, last = record.pairs[0][0], record.pairs[-1][0]
    found = {first, last}
    while first < last:
        found.add(first)
        first = max(first + 1, int(first * 2**0.25))
    return sorted(found)

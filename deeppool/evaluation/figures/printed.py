"""Marks what a paper prints in a figure of this project's numbers."""

import re
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from deeppool.evaluation.paper_values import paper_values
from deeppool.figures import theme
from deeppool.figures.formatting import escape


def printed(figure: go.Figure, evaluation: str, number: str, *, scale: float = 1.0) -> go.Figure:
    """Draws what the paper prints for a number as dashed lines across the figure, named once; nothing for words.

    Args:
        figure: whose y axis has the number's unit.
        evaluation: name of the evaluation.
        number: name of a number of it.
        scale: factor from the number's unit to the axis.
    """
    value = paper_values(evaluation).beside(number)
    if value is None or not value.levels:
        return figure
    for level in value.levels:
        figure.add_hline(y=scale * level, line={"dash": "dash", "width": 1.5, "color": theme.neutral()})
    # What it prints for all batches has no name that a reader knows.
    name = re.sub(r"^[^:]*\*[^:]*: ", "", number)
    scaled = "" if scale == 1 else f", times {scale:g}"
    figure.add_annotation(
        text=escape(f"paper: {name}, {value.value}{scaled}"),
        font={"size": 11, "color": theme.neutral(), "shadow": theme.halo()},
        showarrow=False,
        xref="x domain",
        x=1,
        xanchor="right",
        yref="y",
        y=scale * max(value.levels),
        yanchor="bottom",
    )
    return figure


def printed_marks(
    evaluation: str,
    places: Mapping[str, Any],
    *,
    scale: float = 1.0,
    horizontal: bool = False,
    label: str = "printed in the paper",
) -> list[go.Scatter]:
    """Returns a trace with a mark for each number that a paper prints, at its place; no trace if it prints none.

    Args:
        evaluation: name of the evaluation.
        places: name of a number → its place; those without a printed value get no mark.
        scale: factor from the numbers' unit to the axis.
        horizontal: whether the bars are.
        label: what the marks are, in the legend.
    """
    values = paper_values(evaluation)
    marks = [(at, scale * level) for name, at in places.items() for level in values.levels_beside(name)]
    at, height = [at for at, _ in marks], [level for _, level in marks]
    along, across = ("y", "x") if horizontal else ("x", "y")
    if not marks:
        return []
    trace = go.Scatter(
        name=label,
        legendgroup=label,
        mode="markers",
        marker={
            "symbol": "line-ns-open" if horizontal else "line-ew-open",
            "size": 22,
            "line": {"width": 2.5},
            "color": theme.neutral(),
        },
        hovertemplate=f"{label}: %{{{across}:.4g}}<extra></extra>",
        **{along: at, across: height},
    )
    return [trace]

"""Marks what a paper prints in a figure of this project's numbers."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from deeppool.evaluation.paper_values import paper_values
from deeppool.figures import theme
from deeppool.figures.formatting import escape


def printed(figure: go.Figure, evaluation: str, number: str, *, scale: float = 1.0) -> go.Figure:
    """Draws what the paper prints for a number as dashed lines across the figure, with its words; nothing for words.

    Args:
        figure: whose y axis has the number's unit.
        evaluation: name of the evaluation.
        number: name of a number of it.
        scale: factor from the number's unit to the axis.
    """
    value = paper_values(evaluation).beside(number)
    for level in () if value is None else value.levels:
        figure.add_hline(
            y=scale * level,
            line={"dash": "dash", "width": 1.5, "color": theme.neutral()},
            annotation={
                "text": escape(f"paper: {number}, {value.value}"),  # type: ignore[union-attr]
                "font": {"size": 11, "color": theme.neutral(), "shadow": theme.halo()},
            },
            annotation_position="top left",
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

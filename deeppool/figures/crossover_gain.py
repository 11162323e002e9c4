"""How much faster jobs train when they cross over, by the ratio of their communication to their computing."""

from collections.abc import Callable, Sequence

import numpy as np
import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.interleaving.crossover.comparison_record import (
    APART,
    CROSSOVER,
    DATA_PARALLEL,
    SEQUENTIAL,
    SHIFTED,
    CrossoverComparison,
)
from deeppool.interleaving.crossover.round_time import (
    JobCosts,
    crossover_round_time,
    data_parallel_round_time,
    sequential_round_time,
)

_COLOURS = {SEQUENTIAL: theme.BLUE, DATA_PARALLEL: theme.VERMILLION, APART: theme.ORANGE, SHIFTED: theme.GREEN}
_FORMULAS: dict[str, Callable[[Sequence[JobCosts]], float]] = {
    SEQUENTIAL: sequential_round_time,
    DATA_PARALLEL: data_parallel_round_time,
    APART: lambda pair: 2 * max(job.compute for job in pair),
}
"""Of two jobs; apart: on two ranks."""
_POINTS = 200
LONGEST_BAR = 2.0
"""End of the vertical axis, in multiples of the highest mark or line, where a bar is longer."""


@typed
def crossover_gain(comparisons: Sequence[CrossoverComparison], *, dark: bool = False) -> go.Figure:
    """Draws the measured gain over every other order, and as lines what the formulas say for two equal jobs.

    Args:
        comparisons: of jobs with different ratios, by :func:`deeppool.compare_orders`.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: there are none, or something else.
    """
    if not comparisons:
        raise InvalidValueError("crossover_gain draws one comparison or more (make them with dp.compare_orders)")
    if not all(one.ratio for one in comparisons):
        raise InvalidValueError(
            "crossover_gain draws over communication / computing, and jobs on one rank send nothing (compare them on "
            "two ranks or more)"
        )
    first = comparisons[0]
    orders = [way.name for way in first.ways if way.name != CROSSOVER]
    ratios = [one.ratio for one in comparisons]
    # On more ranks of its own a job sends gradients, too.
    left_out = set() if first.ranks == len(first.jobs) == 2 else {APART}
    formulas = [order for order in orders if order in _FORMULAS and order not in left_out]
    lines = [_line(order, min(ratios), max(ratios)) for order in formulas]
    figure = go.Figure([*lines, *(_marks(order, comparisons, ratios) for order in orders)])
    figure.add_hline(y=1, line={"dash": "dot", "width": 1.5, "color": theme.neutral(dark=dark)})
    figure.update_xaxes(title_text="communication / computing (log)", type="log", tickformat=",.4~r")
    highest, cut = _highest(comparisons, orders, lines)
    figure.update_yaxes(title_text="time of a round / crossover's", range=[0, 1.05 * highest])
    return theme.apply_theme(
        figure,
        title="Gain of jobs that cross over",
        subtitle=f"marks <b>measured</b> on {first.ranks} ranks of {escape(first.device_name)} (bars: 95 % "
        f"confidence{', cut where longer' * cut}); lines by formula, for two equal jobs",
        plot_height=340,
        heading_height=19,
        dark=dark,
    )


def _highest(
    comparisons: Sequence[CrossoverComparison], orders: Sequence[str], lines: Sequence[go.Scatter]
) -> tuple[float, bool]:
    """Returns the end of the vertical axis, and whether it cuts a bar: those of few repetitions flatten all else."""
    gains = [one.gain(CROSSOVER, order) for one in comparisons for order in orders]
    drawn = max([1.0, *(gain for gain, _, _ in gains), *(y for line in lines for y in line.y)])
    ends = max([drawn, *(high for _, _, high in gains if high is not None)])
    return min(ends, LONGEST_BAR * drawn), ends > LONGEST_BAR * drawn


def _marks(order: str, comparisons: Sequence[CrossoverComparison], ratios: Sequence[float]) -> go.Scatter:
    gains = [one.gain(CROSSOVER, order) for one in comparisons]
    return go.Scatter(
        name=f"over {order}",
        mode="markers",
        x=list(ratios),
        y=[gain for gain, _, _ in gains],
        error_y=theme.interval_bars(gains),
        marker={"color": _COLOURS[order], "size": 9},
        hovertemplate=f"{order}: %{{y:.2f}} times the crossover<br>ratio %{{x:.2f}}, measured<extra></extra>",
    )


def _line(order: str, lowest: float, highest: float) -> go.Scatter:
    ratios = np.geomspace(lowest / 1.5, highest * 1.5, _POINTS)
    pairs = [[JobCosts(name, 1.0, float(ratio)) for name in ("first", "second")] for ratio in ratios]
    return go.Scatter(
        name=f"over {order}, formula",
        mode="lines",
        x=ratios.tolist(),
        y=[_FORMULAS[order](pair) / crossover_round_time(pair) for pair in pairs],
        line={"color": _COLOURS[order], "width": 1.5, "dash": "dash"},
        hovertemplate=f"{order}: %{{y:.2f}} times the crossover<br>ratio %{{x:.2f}}, predicted<extra></extra>",
    )

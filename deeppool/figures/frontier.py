"""Iteration time against GPU-seconds: all efficient plans, a given plan, and data parallelism on fewer GPUs."""

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, escape, time_unit
from deeppool.planning.plan import Plan
from deeppool.planning.search.frontier import Frontier

_LOG_ABOVE = 4.0
"""Ratio of the largest to the smallest value above which an axis is logarithmic: beside one GPU, plans for eight would
look alike."""
_ALIKE = 1e-6
"""Difference of values, as a fraction of them, up to which they are one value."""
_MANY_POWERS = 3.5
"""Powers of ten on an axis above which only powers of ten are labelled."""
THIS_PLAN = "this plan"
"""Name of the plan's trace, by which a widget finds and updates it."""


@typed
def frontier(found: Frontier, plan: Plan | None = None, *, dark: bool = False) -> go.Figure:
    """Draws the efficient plans as a line: further left uses fewer GPU-seconds, further down is faster.

    Args:
        found: all efficient plans.
        plan: plan to mark, for the same model, GPUs and batch.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a frontier, or a plan for another model, batch or cluster.
    """
    unit = time_unit(found.single_gpu_iteration_time)
    marks = [] if plan is None else [frontier_mark(found, plan)]
    uniform, too_large = found.comparison.data_parallel, found.comparison.too_large
    works = [*(one.gpu_seconds for one in uniform), *(point.gpu_seconds for point in found.points)]
    times = [*(one.seconds for one in uniform), *(point.iteration_time for point in found.points)]
    layout = theme.theme_layout(
        title=f"{escape(found.model)}, batch {found.global_batch:,} on {found.gpus:,} GPU{'s' * (found.gpus > 1)}: "
        "every efficient plan",
        subtitle=f"<b>predicted</b> for {escape(found.cluster.name)}: {len(found.points):,} efficient "
        f"plan{'s' * (len(found.points) > 1)}, {found.claim}; squares: data parallelism on so many GPUs"
        + ", crosses: where it does not fit into their memory"
        * bool(too_large),
        plot_height=300,
        dark=dark,
    )
    # Built as one dictionary, which plotly validates once: this figure is redrawn while a slider moves.
    return go.Figure(
        {
            "data": [_curve(found, unit, dark), _data_parallel(found, unit, dark), *marks],
            "layout": {
                **layout,
                "xaxis": _axis("GPU time of an iteration (GPU-", works, unit),
                "yaxis": _axis("iteration time (", times, unit),
            },
        }
    )


def frontier_mark(found: Frontier, plan: Plan) -> go.Scatter:
    """Returns the trace that marks a plan in the frontier's figure.

    Raises:
        InvalidValueError: the plan is for another model, batch or cluster.
    """
    _check_same(found, plan)
    unit = time_unit(found.single_gpu_iteration_time)
    return go.Scatter(
        name=THIS_PLAN,
        mode="markers",
        marker={"symbol": "star", "size": 16, "color": theme.VERMILLION},
        x=[unit.of(plan.gpu_seconds)],
        y=[unit.of(plan.iteration_time)],
        customdata=[plan.gpu_seconds / found.single_gpu_iteration_time],
        hovertemplate=_hover("", unit),
        cliponaxis=False,
    )


def _check_same(found: Frontier, plan: Plan) -> None:
    ours = found.model, found.gpus, found.global_batch, found.cluster
    theirs = plan.model, plan.gpus, plan.global_batch, plan.cluster
    if ours != theirs:
        raise InvalidValueError(
            f"the plan is of {plan.model}, batch {plan.global_batch} on {plan.gpus} GPUs of {plan.cluster.name}, the "
            f"frontier of {found.model}, batch {found.global_batch} on {found.gpus} GPUs of {found.cluster.name} "
            "(make a frontier for the same model, batch and cluster: dp.frontier)"
        )


def _curve(found: Frontier, unit: TimeUnit, dark: bool) -> dict[str, object]:
    points = found.points[::-1]
    return {
        "type": "scatter",
        "name": "efficient plans",
        "mode": "lines" if len(points) > 1 else "markers",
        # A budget between two plans only allows the slower one: steps, not a slope.
        "line": {"color": theme.neutral(dark=dark), "width": 2, "shape": "hv"},
        "x": np.array([point.gpu_seconds for point in points]) / unit.seconds,
        "y": np.array([point.iteration_time for point in points]) / unit.seconds,
        "customdata": np.array([point.amplification for point in points]),
        "hovertemplate": _hover("", unit),
    }


def _data_parallel(found: Frontier, unit: TimeUnit, dark: bool) -> dict[str, object]:
    compared = found.comparison
    uniform, symbols = compared.data_parallel, ("x-thin", "square-open")
    return {
        "type": "scatter",
        "name": "data parallel",
        "mode": "markers+text",
        "marker": {
            "symbol": [symbols[one.fits(compared.capacity)] for one in uniform],
            "size": 8,
            "color": theme.neutral(dark=dark),
            "line": {"width": 1.5, "color": theme.neutral(dark=dark)},
        },
        "x": [unit.of(one.gpu_seconds) for one in uniform],
        "y": [unit.of(one.seconds) for one in uniform],
        "text": [f"{one.gpus:,}" for one in uniform],
        "textposition": "middle right",
        "textfont": {"size": 10, "shadow": theme.halo(dark=dark)},
        "customdata": [one.gpu_seconds / found.single_gpu_iteration_time for one in uniform],
        "hovertemplate": _hover(" on %{text} GPUs", unit),
        "cliponaxis": False,
    }


def _hover(where: str, unit: TimeUnit) -> str:
    return (
        f"<b>%{{fullData.name}}</b>{where}<br>%{{y:,.4~r}} {unit.name} an iteration<br>"
        f"%{{x:,.4~r}} GPU-{unit.name}, amplification %{{customdata:,.3~r}}, predicted<extra></extra>"
    )


def _axis(title: str, values: Sequence[float], unit: TimeUnit) -> dict[str, object]:
    least, most = unit.of(min(values)), unit.of(max(values))
    if most <= _LOG_ABOVE * least:
        # Times of one plan may differ in their last digit, whose axis has no ticks.
        margin = 0.06 * (most - least) if most - least > _ALIKE * most else 0.1 * most
        return {"title": {"text": f"{title}{unit.name})"}, "type": "linear", "range": [least - margin, most + margin]}
    low, high = math.log10(least), math.log10(most)
    margin = 0.06 * (high - low)
    ticks = _ticks(low - margin, high + margin)
    labels = [f"{tick:,.6g}" for tick in ticks]
    shown = {"range": [low - margin, high + margin], "tickvals": ticks, "ticktext": labels}
    return {"title": {"text": f"{title}{unit.name}, log)"}, "type": "log", **shown}


def _ticks(low: float, high: float) -> list[float]:
    """Returns round tick values between two powers of ten, about ten at most."""
    steps = (1, 2, 5) if high - low < _MANY_POWERS else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1)
    found = [step * 10.0**power for power in powers for step in steps]
    return [tick for tick in found if low <= math.log10(tick) <= high]

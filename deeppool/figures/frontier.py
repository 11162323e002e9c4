"""Iteration time against GPU-seconds: every efficient plan, the one at hand, and data parallelism on fewer GPUs."""

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.labels import TimeUnit, escape, time_unit
from deeppool.planning.frontier import Frontier
from deeppool.planning.plan import Plan
from deeppool.units import format_seconds

_LOG_ABOVE = 8.0
"""Greatest over smallest value from which on an axis counts in powers."""
THIS_PLAN = "this plan"
"""The name of the plan's mark, by which it can be found and moved."""
_HOVER = (
    "<b>%{fullData.name}</b>%{text}<br>%{customdata[0]} an iteration<br>%{customdata[1]} of GPU time, "
    "amplification %{customdata[2]}, predicted<extra></extra>"
)


def frontier(found: Frontier, plan: Plan | None = None, *, dark: bool = False) -> go.Figure:
    """The efficient plans as a line: further left costs fewer GPU-seconds, further down is faster.

    Args:
        found: every efficient plan.
        plan: is marked; of the same model, GPUs and batch.
        dark: for a dark page.

    Raises:
        InvalidValueError: something else, or a plan of another question.
    """
    if not isinstance(found, Frontier):
        raise InvalidValueError(f"frontier cannot draw a {type(found).__name__}, it accepts a Frontier")
    unit = time_unit(found.single_gpu_iteration_time)
    traces = [_curve(found, unit, dark), _data_parallel(found, unit, dark)]
    figure = go.Figure([*traces, *([] if plan is None else [frontier_mark(found, plan)])])
    figure.update_xaxes(title_text=f"GPU time of an iteration (GPU-{unit.name})", **_axis(_works(found), unit))
    figure.update_yaxes(title_text=f"iteration time ({unit.name})", **_axis(_times(found), unit))
    return theme.dress(
        figure,
        title=f"{escape(found.model)}, batch {found.global_batch} on {found.gpus:,} GPUs: time against GPU time",
        subtitle=f"<b>predicted</b> for {escape(found.cluster.name)}: {len(found.points):,} efficient plans, "
        f"{found.optimality}; squares: data parallelism on so many GPUs",
        plot_height=300,
        heading_height=0,
        dark=dark,
    )


def frontier_mark(found: Frontier, plan: Plan) -> go.Scatter:
    """Where a plan lies in the frontier's figure.

    Raises:
        InvalidValueError: the plan answers another question.
    """
    _check_same(found, plan)
    unit = time_unit(found.single_gpu_iteration_time)
    return go.Scatter(
        name=THIS_PLAN,
        mode="markers",
        marker={"symbol": "star", "size": 16, "color": theme.VERMILLION},
        x=[unit.of(plan.gpu_seconds)],
        y=[unit.of(plan.iteration_time)],
        text=[""],
        customdata=[_told(plan.iteration_time, plan.gpu_seconds, plan.single_gpu_iteration_time)],
        hovertemplate=_HOVER,
        cliponaxis=False,
    )


def _check_same(found: Frontier, plan: Plan) -> None:
    ours = found.model, found.gpus, found.global_batch, found.cluster
    theirs = plan.model, plan.gpus, plan.global_batch, plan.cluster
    if ours != theirs:
        raise InvalidValueError(
            f"the plan is of {plan.model}, batch {plan.global_batch} on {plan.gpus} GPUs of {plan.cluster.name}, the "
            f"frontier of {found.model}, batch {found.global_batch} on {found.gpus} GPUs of {found.cluster.name} "
            "(one frontier for each question: dp.frontier)"
        )


def _curve(found: Frontier, unit: TimeUnit, dark: bool) -> go.Scatter:
    # With GPU-seconds between two plans the slower one serves, so steps, not a slope.
    points = found.points[::-1]
    single = found.single_gpu_iteration_time
    return go.Scatter(
        name="efficient plans",
        mode="lines" if len(points) > 1 else "markers",
        line={"color": theme.neutral(dark=dark), "width": 2, "shape": "hv"},
        x=[unit.of(point.gpu_seconds) for point in points],
        y=[unit.of(point.iteration_time) for point in points],
        text=[""] * len(points),
        customdata=[_told(point.iteration_time, point.gpu_seconds, single) for point in points],
        hovertemplate=_HOVER,
    )


def _data_parallel(found: Frontier, unit: TimeUnit, dark: bool) -> go.Scatter:
    times = dict(zip(found.gpu_counts, found.data_parallel_iteration_times, strict=True))
    times[found.gpus] = found.data_parallel_iteration_time
    single = found.single_gpu_iteration_time
    return go.Scatter(
        name="data parallel",
        mode="markers+text",
        marker={"symbol": "square-open", "size": 8, "color": theme.neutral(dark=dark), "line": {"width": 1.5}},
        x=[unit.of(count * seconds) for count, seconds in times.items()],
        y=[unit.of(seconds) for seconds in times.values()],
        text=[f"{count:,}" for count in times],
        textposition="middle right",
        textfont={"size": 10},
        customdata=[_told(seconds, count * seconds, single) for count, seconds in times.items()],
        hovertemplate=_HOVER.replace("%{text}", " on %{text} GPUs"),
        cliponaxis=False,
    )


def _told(iteration_time: float, gpu_seconds: float, single: float) -> list[str]:
    return [format_seconds(iteration_time), format_seconds(gpu_seconds), f"{gpu_seconds / single:.3g}"]


def _works(found: Frontier) -> list[float]:
    parallel = [count * time for count, time in zip(found.gpu_counts, found.data_parallel_iteration_times, strict=True)]
    parallel.append(found.gpus * found.data_parallel_iteration_time)
    return [*parallel, *(point.gpu_seconds for point in found.points)]


def _times(found: Frontier) -> list[float]:
    parallel = [*found.data_parallel_iteration_times, found.data_parallel_iteration_time]
    return [*parallel, *(point.iteration_time for point in found.points)]


def _axis(values: Sequence[float], unit: TimeUnit) -> dict[str, object]:
    least, most = unit.of(min(values)), unit.of(max(values))
    if most <= _LOG_ABOVE * least:
        margin = 0.06 * (most - least) or 0.1 * most
        return {"type": "linear", "range": [least - margin, most + margin]}
    low, high = math.log10(least), math.log10(most)
    margin = 0.06 * (high - low)
    return {"type": "log", "range": [low - margin, high + margin], "dtick": "D2" if high - low < 2 else 1}

"""Foreground slowdown against background harvest for several ways of sharing a device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.records.run_record import RunRecord
from deeppool.simulation.device.collocated import CollocatedSimulation

COLOURS = (theme.BLUE, theme.VERMILLION, theme.GREEN, theme.ORANGE, theme.PURPLE, theme.SKY_BLUE)


@dataclass(frozen=True, slots=True)
class _Mark:
    """Results of one way of sharing, as fractions, over its runs."""

    name: str
    slowdowns: tuple[float, ...]
    harvests: tuple[float, ...]
    p99_inflation: float
    harvest_of_idle: float


@typed
def trade_off(
    found: Sequence[CollocatedSimulation] | Mapping[str, Sequence[RunRecord]], *, dark: bool = False
) -> go.Figure:
    """Draws a mark for each way of sharing: further left is better for the foreground, higher for the background.

    Args:
        found: predictions for the same two jobs, or measured runs by the name of the way of sharing. Marks of runs are
            medians, with bars from the smallest to the largest value.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: none, or something else.
    """
    if not (any(found.values()) if isinstance(found, Mapping) else found):
        raise InvalidValueError(
            "trade_off cannot draw nothing, it accepts CollocatedSimulations, or RunRecords by name"
        )
    marks, idle, how = _measured(found) if isinstance(found, Mapping) else _predicted(found)
    figure = go.Figure([_trace(mark, number) for number, mark in enumerate(marks)])
    figure.add_hline(
        y=100 * idle,
        line={"dash": "dash", "width": 1.5, "color": theme.neutral(dark=dark)},
        annotation={"text": "idle time of the foreground alone", "font": {"color": theme.neutral(dark=dark)}},
        annotation_position="top right",
    )
    lowest = min(0.0, *(slowdown for mark in marks for slowdown in mark.slowdowns))
    figure.update_xaxes(title_text="slowdown of the foreground (%)", rangemode="tozero" if lowest == 0 else "normal")
    most = 100 * max(1.0, idle, *(harvest for mark in marks for harvest in mark.harvests))
    figure.update_yaxes(title_text="background, % of alone", range=[0, 1.05 * most])
    figure.update_layout(legend={"orientation": "v"})
    return theme.apply_theme(
        figure,
        title="Foreground slowdown and background harvest",
        subtitle=how,
        plot_height=380,
        # The legend has a line per mark.
        heading_height=19 * (len(marks) - 1),
        dark=dark,
    )


def _predicted(simulations: Sequence[CollocatedSimulation]) -> tuple[list[_Mark], float, str]:
    marks = [
        _Mark(str(one.sharing), (one.slowdown,), (one.harvest,), one.p99_inflation, one.harvest_of_idle)
        for one in simulations
    ]
    how = f"<b>predicted</b> on a virtual clock, {simulations[0].iterations} iterations each"
    return marks, simulations[0].idle_share, how


def _measured(runs: Mapping[str, Sequence[RunRecord]]) -> tuple[list[_Mark], float, str]:
    every = [run for found in runs.values() for run in found]
    lone = next((run for run in every if run.background is None), None)
    if lone is not None:
        raise InvalidValueError(f"trade_off cannot draw a run without a background: {lone.model}, policy {lone.policy}")
    marks = [_mark(name, found) for name, found in runs.items() if found]
    idle = median(mean(run.foreground.alone.idle_share) for run in every)
    rounds = max(len(found) for found in runs.values())
    each = "" if rounds == 1 else f", median of {rounds} rounds each (bars: smallest to largest)"
    return marks, idle, f"<b>measured</b>: {escape(every[0].model)} on {escape(every[0].device_name)}{each}"


def _mark(name: str, runs: Sequence[RunRecord]) -> _Mark:
    fronts, backs = [run.foreground for run in runs], [run.background for run in runs if run.background is not None]
    inflations = [front.iteration_time.p99 / front.alone.iteration_time.p99 - 1 for front in fronts]
    return _Mark(
        name,
        tuple(front.slowdown for front in fronts),
        tuple(back.harvest for back in backs),
        median(inflations),
        median(back.harvest_of_idle for back in backs),
    )


def _trace(mark: _Mark, number: int) -> go.Scatter:
    return go.Scatter(
        name=escape(mark.name),
        mode="markers",
        marker={"size": 11, "color": COLOURS[number % len(COLOURS)], "symbol": number // len(COLOURS)},
        x=[100 * median(mark.slowdowns)],
        y=[100 * median(mark.harvests)],
        error_x=_bars(mark.slowdowns),
        error_y=_bars(mark.harvests),
        customdata=[[100 * mark.p99_inflation, 100 * mark.harvest_of_idle]],
        hovertemplate=(
            "foreground %{x:.1f} % slower (p99 %{customdata[0]:.1f} %)<br>"
            "background %{y:.1f} % of alone, %{customdata[1]:.0f} % of the idle time<extra></extra>"
        ),
    )


def _bars(values: Sequence[float]) -> dict[str, object] | None:
    """Returns error bars from the smallest to the largest value; None for a single value."""
    if len(values) < 2:
        return None
    middle = median(values)
    above, below = 100 * (max(values) - middle), 100 * (middle - min(values))
    return {"type": "data", "symmetric": False, "array": [above], "arrayminus": [below], "thickness": 1, "width": 4}

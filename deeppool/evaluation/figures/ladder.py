"""Effect of each sharing mechanism, as in DeepPool's figure 11: rows from the bottom up."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import median

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.evaluation.experiments.stream_ladder import LadderResult
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.records.run_record import BackgroundResult, RunRecord

ALONE = "foreground alone"
"""Label of the bottom row."""


@typed
def ladder(runs: Mapping[str, Sequence[RunRecord]]) -> go.Figure:
    """Draws foreground and background throughput with each mechanism, as a percentage of what each reaches alone.

    Args:
        runs: runs by rung, the lowest first; a bar is the median of its runs, its line reaches from the smallest to the
            largest. One run has no line.

    Raises:
        InvalidValueError: none, something else, or a run without a background.
    """
    every = [run for found in runs.values() for run in found]
    if not every:
        raise InvalidValueError("ladder cannot draw nothing, it accepts RunRecords by rung")
    climbed = {name: found for name, found in runs.items() if found}
    harvests = {name: [100 * _background(run).harvest for run in found] for name, found in climbed.items()}
    kept = {name: [kept_throughput(run) for run in found] for name, found in climbed.items()}
    figure = make_subplots(
        cols=2, shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=("foreground", "background")
    )
    figure.update_annotations(font_size=12)
    figure.add_trace(_bars("foreground", {ALONE: [100.0], **kept}, theme.BLUE), row=1, col=1)
    green = theme.colour("background")
    figure.add_trace(_bars("background", {ALONE: [0.0], **harvests}, green), row=1, col=2)
    for column, values in ((1, kept), (2, harvests)):
        highest = max([100.0, *(value for found in values.values() for value in found)])
        figure.update_xaxes(title_text="throughput (% of alone)", range=[0, 1.15 * highest], row=1, col=column)
    first = every[0]
    rounds = max(map(len, climbed.values()))
    each = "" if rounds == 1 else f"; median of {rounds} rounds, from the smallest to the largest"
    how = "emulated" if any(run.emulated_rank is not None for run in every) else "measured"
    theme.apply_theme(
        figure,
        title=f"{escape(first.model)} beside {escape(_background(first).model)}, a mechanism more on each row",
        subtitle=f"<b>{how}</b> with {escape(first.where)}{each}",
        plot_height=max(200, 40 * (1 + len(climbed))),
        heading_height=20,
    )
    return figure.update_layout(showlegend=False)


@typed
def stream_ladder(results: Mapping[str, LadderResult], where: str) -> go.Figure:
    """Draws the throughput of both jobs in two streams of a device with each mechanism, beside several foregrounds.

    Args:
        results: all rungs, by the name of the foreground.
        where: what the results are and of which device, for example ``emulated on h200``.

    Raises:
        InvalidValueError: no result.
    """
    if not results:
        raise InvalidValueError("stream_ladder cannot draw nothing, it accepts LadderResults by foreground")
    figure = make_subplots(
        cols=2, shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=("foreground", "background")
    )
    figure.update_annotations(font_size=12)
    shades = (theme.BLUE, theme.colour("background"), theme.neutral())
    for shade, (name, result) in zip(itertools.cycle(shades), results.items(), strict=False):
        kept = {rung.rung: [100 * rung.kept] for rung in result.rungs}
        harvests = {rung.rung: [100 * rung.harvest] for rung in result.rungs}
        for column, values in ((1, kept), (2, harvests)):
            bars = _bars(f"{escape(name)} foreground", values, shade)
            bars.update(legendgroup=name, showlegend=column == 1)
            figure.add_trace(bars, row=1, col=column)
    figure.update_xaxes(title_text="throughput (% of alone)", rangemode="tozero")
    return theme.apply_theme(
        figure,
        title="Two jobs in two streams, a mechanism more on each row",
        subtitle=escape(where),
        plot_height=max(240, 30 * len(results) * max(len(result.rungs) for result in results.values())),
        heading_height=20,
    ).update_layout(barmode="group")


def kept_throughput(run: RunRecord) -> float:
    """Returns the foreground throughput beside its background, as a percentage of alone; from mean iteration times."""
    return 100 / (1 + run.foreground.slowdown)


def _background(run: RunRecord) -> BackgroundResult:
    if run.background is None:
        raise InvalidValueError(f"ladder cannot draw a run without a background: {run.model}, policy {run.policy}")
    return run.background


def _bars(name: str, values: Mapping[str, Sequence[float]], colour: str) -> go.Bar:
    middles = [median(found) for found in values.values()]
    return go.Bar(
        orientation="h",
        name=name,
        y=[escape(rung) for rung in values],
        x=middles,
        error_x={
            "type": "data",
            "visible": any(len(found) > 1 for found in values.values()),
            "symmetric": False,
            "array": [max(found) - middle for found, middle in zip(values.values(), middles, strict=True)],
            "arrayminus": [middle - min(found) for found, middle in zip(values.values(), middles, strict=True)],
            "thickness": 1.2,
            "width": 3,
        },
        marker={"color": colour},
        text=[f"{middle:.0f} %" for middle in middles],
        textposition="inside",
        textangle=0,
        insidetextanchor="start",
        hovertemplate=f"<b>%{{y}}</b>: {name} at %{{x:.1f}} % of alone<extra></extra>",
    )

"""Two waves beside one: memory, throughput, and how close waves of model parallelism come to N times the speed."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.evaluation.experiments.tick_tock import WaveRun
from deeppool.figures import theme
from deeppool.figures.formatting import escape


@typed
def tick_tock(runs: Sequence[WaveRun], where: str) -> go.Figure:
    """Draws throughput against the memory reserved, a line for one wave and one for two, a point for each batch.

    Args:
        runs: runs of several batches.
        where: what the times are, and of which model and device.

    Raises:
        InvalidValueError: no runs.
    """
    if not runs:
        raise InvalidValueError("tick_tock cannot draw nothing, it accepts WaveRuns")
    figure = go.Figure()
    for waves, color in ((1, theme.neutral()), (2, theme.BLUE)):
        chosen = sorted({run for run in runs if run.waves == waves}, key=lambda run: run.batch)
        figure.add_trace(
            go.Scatter(
                name="one wave" if waves == 1 else "two waves",
                mode="lines+markers+text",
                x=[run.memory / 2**30 for run in chosen],
                y=[run.throughput for run in chosen],
                text=[str(run.batch) for run in chosen],
                textposition="top left",
                line={"color": color},
                hovertemplate="batch %{text}: %{x:.2f} GiB, %{y:,.0f} samples/s<extra></extra>",
            )
        )
    figure.update_xaxes(title_text="memory reserved (GiB)", rangemode="tozero")
    figure.update_yaxes(title_text="samples per second", rangemode="tozero")
    return theme.apply_theme(
        figure,
        title="Throughput by memory, in one wave and in two",
        subtitle=f"{escape(where)}; numbers are samples of an iteration",
        plot_height=360,
    )


@typed
def wave_efficiency(curves: Mapping[str, Sequence[tuple[float, float]]], where: str) -> go.Figure:
    """Draws the speed-up of N waves over plain model parallelism, divided by N.

    Args:
        curves: by a name, pairs of a ratio of computing to transfers and the speed-up divided by N.
        where: what the numbers are.

    Raises:
        InvalidValueError: no curves.
    """
    if not curves:
        raise InvalidValueError("wave_efficiency cannot draw nothing, it accepts pairs of ratio and speed-up / N")
    figure = go.Figure()
    for number, (name, pairs) in enumerate(curves.items()):
        figure.add_trace(
            go.Scatter(
                name=escape(name),
                mode="lines+markers",
                x=[ratio for ratio, _ in pairs],
                y=[share for _, share in pairs],
                line={"color": theme.BLUE, "dash": ("solid", "dash", "dot", "dashdot")[number % 4]},
                hovertemplate="computing / transfers %{x:,.2~r}: %{y:.2f}<extra></extra>",
            )
        )
    ratios = [ratio for pairs in curves.values() for ratio, _ in pairs]
    title = "computing of a batch / transfers of a step (log)"
    figure.update_xaxes(title_text=title, type="log", **theme.log_ticks(ratios))
    figure.update_yaxes(title_text="speed-up / N", range=[0, 1.05])
    return theme.apply_theme(
        figure,
        title="Waves of model parallelism over one wave",
        subtitle=escape(where),
        plot_height=320,
    )

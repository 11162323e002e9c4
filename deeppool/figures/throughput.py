"""Foreground speed-up against cluster throughput, as DeepPool's figure 10 draws it."""

from collections.abc import Iterator

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.frontier import THIS_PLAN
from deeppool.figures.labels import escape
from deeppool.planning.plan import Plan
from deeppool.planning.share import point_of
from deeppool.planning.shared_cluster import OperatingPoint, SharedCluster
from deeppool.units import format_seconds


def throughput(*shared: SharedCluster, plan: Plan | None = None, dark: bool = False) -> go.Figure:
    """The curve of burst-parallel plans with collocation, and static partitions as marks.

    Args:
        shared: what ``dp.share`` found, a panel each; predictions, and the subtitle says what they lean on.
        plan: is marked in every panel, with the background in all the idle time that it leaves; of the same foreground.
        dark: for a dark page.

    Raises:
        InvalidValueError: none, something else, or a plan of another foreground.
    """
    wrong = next((one for one in shared if not isinstance(one, SharedCluster)), None)
    if wrong is not None or not shared:
        what = "nothing" if wrong is None else f"a {type(wrong).__name__}"
        raise InvalidValueError(f"throughput cannot draw {what}, it accepts a SharedCluster")
    several = len(shared) > 1
    headings = [f"{escape(one.model)}, batch {one.global_batch}" for one in shared] if several else None
    figure = make_subplots(cols=len(shared), horizontal_spacing=0.07, subplot_titles=headings)
    figure.update_annotations(font_size=12)
    for column, one in enumerate(shared, 1):
        alone = [_background_alone(one, dark)] if several else []
        marks = [] if plan is None else [throughput_mark(one, plan)]
        for trace in (_collocated(one, dark), *_partitions(one, dark), *marks, *alone):
            if several:
                # One entry of the legend for all panels.
                figure.add_trace(trace.update(legendgroup=trace.name, showlegend=column == 1), row=1, col=column)
            else:
                figure.add_trace(trace)
        if not several:
            _draw_background_alone(figure, one, dark)
        _hold_everything(figure, one, column)
    figure.update_xaxes(title_text="speed-up over one GPU (×)" if several else "foreground speed-up over one GPU (×)")
    figure.update_yaxes(title_text="cluster throughput (samples/s)", row=1, col=1)
    return theme.dress(
        figure,
        title=f"Foreground speed-up against cluster throughput on {_gpus(shared[0].gpus)}"
        if several
        else _title(shared[0]),
        subtitle=_subtitle_of_all(shared) if several else _subtitle(shared[0]),
        plot_height=380,
        heading_height=24 if several else 0,
        dark=dark,
    )


def throughput_mark(shared: SharedCluster, plan: Plan) -> go.Scatter:
    """Where a plan lies in the shared cluster's figure.

    Raises:
        InvalidValueError: the plan is of another foreground, or of another cluster.
    """
    point = point_of(shared, plan)
    return go.Scatter(
        name=THIS_PLAN,
        mode="markers",
        marker={"symbol": "star", "size": 16, "color": theme.VERMILLION},
        x=[point.speedup],
        y=[point.throughput],
        customdata=[_hover(point, shared)],
        hovertemplate=_HOVER,
        cliponaxis=False,
    )


def _collocated(shared: SharedCluster, dark: bool) -> go.Scatter:
    points = shared.efficient()
    return go.Scatter(
        name="burst parallel, collocated",
        mode="lines+markers",
        # At a speed-up between two plans the faster one serves, so steps, not a slope.
        line={"color": theme.colour("background", dark=dark), "width": 2, "shape": "hv"},
        marker={"size": 5},
        x=[point.speedup for point in points],
        y=[point.throughput for point in points],
        customdata=[_hover(point, shared) for point in points],
        hovertemplate=_HOVER,
    )


def _partitions(shared: SharedCluster, dark: bool) -> Iterator[go.Scatter]:
    for points, symbol, place in (
        (shared.burst_parallel_partitions, "diamond-open", None),
        (shared.data_parallel_partitions, "square", "bottom center"),
    ):
        labels = [f"{point.gpus} + {shared.gpus - point.gpus}" for point in points]
        yield go.Scatter(
            name=f"static partition, {points[0].strategy}",
            mode="markers+text" if place else "markers",
            marker={"symbol": symbol, "size": 9, "color": theme.neutral(dark=dark), "line": {"width": 1.5}},
            text=labels if place else None,
            textposition=place,
            textfont={"size": 11},
            cliponaxis=False,
            x=[point.speedup for point in points],
            y=[point.throughput for point in points],
            customdata=[_hover(point, shared) for point in points],
            hovertemplate=_HOVER,
        )


_HOVER = (
    "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>speed-up %{x:.2f}×, %{customdata[2]} an iteration<br>"
    "%{y:.4g} samples/s: %{customdata[3]}<br>%{customdata[4]}× data parallel on all GPUs, predicted<extra></extra>"
)


def _hover(point: OperatingPoint, shared: SharedCluster) -> list[str]:
    """What, where, iteration time, the two throughputs, and the paper's comparison with data parallelism."""
    rest = shared.gpus - point.gpus
    return [
        f"{point.strategy}, {'collocated' if point.collocated else 'static partition'}",
        f"{_gpus(point.gpus)} (limit {point.amplification_limit:.3f} of the iteration), {rest} for the background alone"
        if point.strategy == "burst parallel"
        else f"{_gpus(point.gpus)}, {rest} for the background alone",
        format_seconds(point.iteration_time),
        f"{point.foreground_throughput:.4g} foreground + {point.background_throughput:.4g} background",
        f"{point.throughput / shared.data_parallel_partitions[-1].throughput:.2f}",
    ]


def _draw_background_alone(figure: go.Figure, shared: SharedCluster, dark: bool) -> None:
    """What the cluster trains without a foreground: the ceiling where both jobs are the same model."""
    figure.add_hline(
        y=shared.background_alone_throughput,
        line={"dash": "dash", "width": 1.5, "color": theme.neutral(dark=dark)},
        annotation={"text": "background alone on all GPUs", "font": {"color": theme.neutral(dark=dark)}},
        annotation_position="top right",
    )


def _background_alone(shared: SharedCluster, dark: bool) -> go.Scatter:
    """The same as a line of the legend: a narrow panel has no room for its name."""
    return go.Scatter(
        name="background alone on all GPUs",
        mode="lines",
        line={"dash": "dash", "width": 1.5, "color": theme.neutral(dark=dark)},
        x=[0, 1.05 * max(point.speedup for point in _all_points(shared))],
        y=[shared.background_alone_throughput] * 2,
        hovertemplate="background alone: %{y:.4g} samples/s<extra></extra>",
    )


def _hold_everything(figure: go.Figure, shared: SharedCluster, column: int) -> None:
    # A line that shapes draw does not count for plotly's own range.
    points = _all_points(shared)
    highest = max([shared.background_alone_throughput, *(point.throughput for point in points)])
    figure.update_yaxes(range=[0, 1.12 * highest], row=1, col=column)
    figure.update_xaxes(range=[0, 1.05 * max(point.speedup for point in points)], row=1, col=column)


def _all_points(shared: SharedCluster) -> tuple[OperatingPoint, ...]:
    return (*shared.points, *shared.data_parallel_partitions, *shared.burst_parallel_partitions)


def _title(shared: SharedCluster) -> str:
    return f"{escape(shared.model)} with {escape(shared.background_model)} on {_gpus(shared.gpus)}"


def _subtitle(shared: SharedCluster) -> str:
    far = shared.extrapolated_gpu_counts
    note = f", extrapolated on {_choice(far)}" if far else ""
    idle = (
        "all idle time harvested, no interference modelled"
        if shared.harvest_of_idle == 1
        else f"{100 * shared.harvest_of_idle:g} % of idle time harvested"
    )
    return (
        f"<b>predicted</b> from {shared.provenance} layer times{note} ({escape(shared.device_name)}); global batch "
        f"{shared.global_batch}, background batch {shared.background_batch}; {idle}; {shared.optimality}"
    )


def _subtitle_of_all(shared: tuple[SharedCluster, ...]) -> str:
    """What is the same in all panels; the rest is told at each point."""
    provenance = "estimated" if any(one.provenance == "estimated" for one in shared) else "measured"
    device = ", ".join(dict.fromkeys(one.device_name for one in shared))
    harvest = " or ".join(dict.fromkeys(f"{100 * one.harvest_of_idle:g} %" for one in shared))
    return (
        f"<b>predicted</b> from {provenance} layer times ({escape(device)}); the same model behind; {harvest} of idle "
        "time harvested, no interference modelled"
    )


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count > 1)}"


def _choice(counts: tuple[int, ...]) -> str:
    """``1, 2 or 4 GPUs``."""
    *most, last = counts
    return f"{', '.join(map(str, most))} or {_gpus(last)}" if most else _gpus(last)

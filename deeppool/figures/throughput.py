"""Foreground speed-up against cluster throughput (DeepPool, figure 10)."""

from collections.abc import Iterator

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.costs.amplification import format_limit
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.figures.frontier import THIS_PLAN
from deeppool.planning.plan import Plan
from deeppool.planning.studies.collocation_tradeoff import operating_point
from deeppool.planning.studies.tradeoff_record import OperatingPoint, SharedCluster
from deeppool.units import format_count, format_rate, format_seconds


@typed
def throughput(shared: SharedCluster, plan: Plan | None = None, *, dark: bool = False) -> go.Figure:
    """Draws a curve of burst-parallel plans with collocation, and marks for static partitions.

    Args:
        shared: result of ``dp.share``; the subtitle states what its predictions are based on.
        plan: plan of the same foreground to mark, with the background in all of its idle time.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a shared cluster, or a plan of another foreground.
    """
    marks = [] if plan is None else [throughput_mark(shared, plan)]
    figure = go.Figure([collocated_curve(shared, dark=dark), *partition_marks(shared, dark=dark), *marks])
    _draw_background_alone(figure, shared, dark)
    figure.update_xaxes(title_text="foreground speed-up over one GPU (×)")
    figure.update_yaxes(title_text="cluster throughput (samples/s)")
    return theme.apply_theme(
        figure,
        title=f"{escape(shared.model)} with {escape(shared.background_model)} on {format_count(shared.gpus, 'GPU')}",
        subtitle=_subtitle(shared),
        plot_height=380,
        dark=dark,
    )


def throughput_mark(shared: SharedCluster, plan: Plan) -> go.Scatter:
    """Returns the trace that marks a plan in the shared cluster's figure.

    Raises:
        InvalidValueError: the plan is of another foreground, or of another cluster.
    """
    point = operating_point(shared, plan)
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


def collocated_curve(shared: SharedCluster, *, dark: bool = False) -> go.Scatter:
    """Returns the trace of the efficient plans with the background in their idle time."""
    points = shared.efficient()
    return go.Scatter(
        name="burst parallel, collocated",
        mode="lines+markers",
        # A required speed-up between two plans needs the faster one: steps, not a slope.
        line={"color": theme.colour("background", dark=dark), "width": 2, "shape": "hv"},
        # A single plan has no line, and is often a partition, whose mark would cover it.
        marker={"size": 5 if len(points) > 1 else 18},
        x=[point.speedup for point in points],
        y=[point.throughput for point in points],
        customdata=[_hover(point, shared) for point in points],
        hovertemplate=_HOVER,
    )


def partition_marks(shared: SharedCluster, *, dark: bool = False) -> Iterator[go.Scatter]:
    """Yields the traces of static partitions, burst parallel and data parallel."""
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
            textfont={"size": 11, "shadow": theme.halo(dark=dark)},
            cliponaxis=False,
            x=[point.speedup for point in points],
            y=[point.throughput for point in points],
            customdata=[_hover(point, shared) for point in points],
            hovertemplate=_HOVER,
        )


_HOVER = (
    "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>speed-up %{x:.2f}×, %{customdata[2]} an iteration<br>"
    "%{y:,.4~r} samples/s: %{customdata[3]}<br>%{customdata[4]}<extra></extra>"
)


def _hover(point: OperatingPoint, shared: SharedCluster) -> list[str]:
    """Returns hover texts of a point: strategy, GPUs, iteration time, throughputs, ratio to data parallelism."""
    rest, limit, alone = shared.gpus - point.gpus, "", shared.data_parallel
    if point.strategy == "burst parallel":
        limit = f" (limit {format_limit(point.amplification_limit)} of the iteration)"
    return [
        f"{point.strategy}, {'collocated' if point.collocated else 'static partition'}",
        f"{format_count(point.gpus, 'GPU')}{limit}, {rest} for the background alone",
        format_seconds(point.iteration_time),
        f"{format_rate(point.foreground_throughput, 4)} foreground + "
        f"{format_rate(point.background_throughput, 4)} background",
        f"{point.throughput / alone.throughput:.2f}× data parallel on {format_count(alone.gpus, 'GPU')}, "
        f"{'simulated' if point.collocated and shared.interference else 'predicted'}",
    ]


def _draw_background_alone(figure: go.Figure, shared: SharedCluster, dark: bool) -> None:
    """Draws the throughput of a cluster without a foreground: an upper bound if both jobs are the same model."""
    alone = shared.background_alone_throughput
    figure.add_hline(
        y=alone,
        layer="below",
        line={"dash": "dash", "width": 1.5, "color": theme.neutral(dark=dark)},
        annotation={"text": "background alone on all GPUs", "font": {"color": theme.neutral(dark=dark)}},
        annotation_position="top right",
    )
    # Plotly's automatic range ignores shapes.
    points = (*shared.points, *shared.data_parallel_partitions, *shared.burst_parallel_partitions)
    highest = max([alone, *(point.throughput for point in points)])
    figure.update_yaxes(range=[0, 1.12 * highest])
    figure.update_xaxes(range=[0, 1.05 * max(point.speedup for point in points)])


def _subtitle(shared: SharedCluster) -> str:
    far = shared.extrapolated_gpu_counts
    note = f", extrapolated on {_choice(far)}" if far else ""
    basis = "simulated" if shared.interference else "predicted"
    return (
        f"<b>{basis}</b> from {shared.provenance} layer times{note} ({escape(shared.device_name)}); global batch "
        f"{shared.global_batch}, background batch {shared.background_batch}; {escape(shared.modelled)}; "
        f"{shared.optimality}"
    )


def _choice(counts: tuple[int, ...]) -> str:
    """Formats GPU counts as ``1, 2 or 4 GPUs``."""
    *most, last = counts
    return f"{', '.join(map(str, most))} or " * bool(most) + format_count(last, "GPU")

"""Foreground speed-up against cluster throughput for several foregrounds, as in DeepPool's figure 10."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.figures.throughput import collocated_curve, partition_marks
from deeppool.planning.studies.tradeoff_record import SharedCluster


@typed
def partitions(*shared: SharedCluster) -> go.Figure:
    """Draws burst-parallel plans with collocation and static partitions, a panel for each foreground.

    Args:
        shared: results of ``dp.share``; predictions, and the subtitle states what they are based on.

    Raises:
        InvalidValueError: none, or something else.
    """
    if not shared:
        raise InvalidValueError("partitions cannot draw nothing, it accepts SharedClusters")
    headings = [f"{escape(one.model)}, batch {one.global_batch}" for one in shared]
    figure = make_subplots(cols=len(shared), horizontal_spacing=0.07, subplot_titles=headings)
    figure.update_annotations(font_size=12)
    for column, one in enumerate(shared, 1):
        points = (*one.points, *one.data_parallel_partitions, *one.burst_parallel_partitions)
        right = 1.05 * max(point.speedup for point in points)
        # The last ones have the labels, over which nothing is drawn.
        for trace in (collocated_curve(one), _background_alone(one, right), *partition_marks(one)):
            # One entry of the legend for all panels.
            trace.update(legendgroup=trace.name, showlegend=column == 1)
            figure.add_trace(trace, row=1, col=column)
        highest = max([one.background_alone_throughput, *(point.throughput for point in points)])
        figure.update_xaxes(range=[0, right], row=1, col=column)
        figure.update_yaxes(range=[0, 1.12 * highest], row=1, col=column)
    figure.update_xaxes(title_text="speed-up over one GPU (×)")
    figure.update_yaxes(title_text="cluster throughput (samples/s)", row=1, col=1)
    counts = " or ".join(dict.fromkeys(f"{one.gpus} GPU{'s' * (one.gpus > 1)}" for one in shared))
    return theme.apply_theme(
        figure,
        title=f"Foreground speed-up against cluster throughput on {counts}",
        subtitle=_subtitle(shared),
        plot_height=380,
        heading_height=24,
    )


def _background_alone(shared: SharedCluster, right: float) -> go.Scatter:
    """Adds the cluster throughput without a foreground; named in the legend, as a panel is too narrow for a label."""
    return go.Scatter(
        name="background alone on all GPUs",
        mode="lines",
        line={"dash": "dash", "width": 1.5, "color": theme.neutral()},
        x=[0, right],
        y=[shared.background_alone_throughput] * 2,
        hovertemplate="background alone: %{y:,.4~r} samples/s<extra></extra>",
    )


def _subtitle(shared: tuple[SharedCluster, ...]) -> str:
    """Settings common to all panels; the others are in the hover text."""
    provenance = "estimated" if any(one.provenance == "estimated" for one in shared) else "measured"
    device = ", ".join(dict.fromkeys(one.device_name for one in shared))
    basis = "simulated" if any(one.interference for one in shared) else "predicted"
    modelled = " or ".join(dict.fromkeys(one.modelled for one in shared))
    return f"<b>{basis}</b> from {provenance} layer times ({escape(device)}); {escape(modelled)}"

"""Time of an all-reduce on a cluster over its bytes: measured, and computed from the links."""

from collections.abc import Iterator

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import Network
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.units import format_bytes, format_seconds

SIZES = [2**power for power in range(10, 31)]
"""Bytes of the gradients, 1 KiB to 1 GiB."""
LINES = 6
"""Group sizes that are drawn."""


@typed
def network(cluster: Cluster, *, dark: bool = False) -> go.Figure:
    """Draws the seconds of an all-reduce over bytes, a line per number of GPUs.

    Args:
        cluster: cluster whose links, or measured all-reduces, are drawn.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a cluster.
    """
    measured = cluster.measured is not None
    figure = go.Figure()
    colours = [theme.SKY_BLUE, theme.BLUE, theme.GREEN, theme.ORANGE, theme.VERMILLION, theme.PURPLE]
    for colour, gpus in zip(colours, _groups(cluster), strict=False):
        for basis in ("computed", "measured") if measured else ("computed",):
            prices = Network(cluster, "measured" if basis == "measured" else "ring")
            times = [prices.all_reduce_time(gpus, size) for size in SIZES]
            figure.add_scatter(
                name=f"{gpus:,} GPU{'s' * (gpus > 1)}, {basis}",
                mode="lines",
                x=SIZES,
                y=times,
                line={"color": colour, "dash": "dot" if measured and basis == "computed" else "solid"},
                customdata=[
                    [format_bytes(size), format_seconds(time)] for size, time in zip(SIZES, times, strict=True)
                ],
                hovertemplate=f"%{{customdata[0]}} on {gpus:,} GPUs: %{{customdata[1]}}, {basis}<extra></extra>",
            )
    ticks = SIZES[::5]
    seconds = [10.0**power for power in range(-6, 3)]
    figure.update_xaxes(
        title_text="gradients (log)", type="log", tickvals=ticks, ticktext=[format_bytes(size) for size in ticks]
    )
    figure.update_yaxes(
        title_text="all-reduce (log)", type="log", tickvals=seconds, ticktext=[format_seconds(x) for x in seconds]
    )
    return theme.apply_theme(
        figure,
        title=f"{escape(cluster.name)}: {cluster.gpus:,} GPU{'s' * (cluster.gpus > 1)}, {cluster.gpus_per_node} a node",
        subtitle=f"inside a node: {escape(cluster.inside.source)}<br>between nodes: {escape(cluster.between.source)}",
        plot_height=340,
        dark=dark,
    )


def _groups(cluster: Cluster) -> Iterator[int]:
    """Yields group sizes from two GPUs to all of them: those of one node, then of several."""
    sizes = {2, min(cluster.gpus_per_node, cluster.gpus), cluster.gpus}
    doubled = 4
    while doubled < cluster.gpus and len(sizes) < LINES:
        sizes.add(doubled)
        doubled *= 2
    measured = cluster.measured.ranks if cluster.measured is not None else cluster.gpus
    yield from sorted(size for size in sizes if 1 < size <= min(cluster.gpus, measured))

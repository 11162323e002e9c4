"""How much longer iterations take by other methods of sending gradients than by Caramel's, network by network."""

from collections.abc import Sequence

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.collectives.transfer_methods import CARAMEL, DDP, DEAR, HOROVOD, SERVERS, SHARDED, TUNED_DDP
from deeppool.errors import InvalidValueError
from deeppool.evaluation.figures.printed import printed_marks
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.simulation.transfers.comparison import TransferComparison
from deeppool.units import format_count

_COLOURS = {
    SERVERS: theme.VERMILLION,
    SHARDED: theme.ORANGE,
    HOROVOD: theme.PURPLE,
    DDP: theme.SKY_BLUE,
    TUNED_DDP: theme.BLUE,
    DEAR: theme.GREEN,
}


@typed
def transfer_gains(compared: Sequence[TransferComparison]) -> go.Figure:
    """Draws each method's iteration over Caramel's, by the ratio of communication to computing, a mark per network.

    What the paper prints for parameter servers is marked, too.

    Args:
        compared: comparisons of different models or networks, by :func:`deeppool.compare_transfers`.

    Raises:
        InvalidValueError: there are none.
    """
    if not compared:
        raise InvalidValueError("transfer_gains got nothing to draw (give what dp.compare_transfers found)")
    ratios = [one.plan(CARAMEL).transfer_time / one.compute_time for one in compared]
    names = [f"{escape(one.model)}, {escape(one.cluster.name)}" for one in compared]
    figure = go.Figure(
        [
            go.Scatter(
                name=method,
                mode="markers",
                x=ratios,
                y=[one.speedup(method) for one in compared],
                text=names,
                marker={"color": colour, "size": 9},
                hovertemplate=f"<b>%{{text}}</b><br>{method}: %{{y:.2f}} times Caramel's iteration<br>"
                "communication / computing %{x:.2f}, predicted<extra></extra>",
            )
            for method, colour in _COLOURS.items()
        ]
    )
    places = {f"{name}: {SERVERS} / Caramel": ratio for name, ratio in zip(names, ratios, strict=True)}
    figure.add_traces(printed_marks("caramel", places))
    figure.add_hline(y=1, line={"dash": "dot", "width": 1.5, "color": theme.neutral()})
    drawn = [gain for trace in figure.data for gain in trace.y]
    figure.update_xaxes(title_text="communication / computing (log)", type="log", **theme.log_ticks(ratios))
    figure.update_yaxes(title_text="iteration / Caramel's (log)", type="log", **theme.log_ticks(drawn))
    first = compared[0]
    return theme.apply_theme(
        figure,
        title=f"Other methods against Caramel on {format_count(first.cluster.gpus, 'GPU')}",
        subtitle=f"<b>predicted</b> from {first.provenance} layer times ({escape(first.device_name)})",
        plot_height=380,
        heading_height=19,
    )

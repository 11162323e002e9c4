"""Iterations that differ in how gradients are sent: computing, and waiting for transfers."""

import plotly.graph_objects as go

from deeppool.figures import theme
from deeppool.figures.arguments import require
from deeppool.figures.formatting import TimeUnit, escape, time_unit
from deeppool.simulation.transfers.comparison import MethodTransfers, TransferComparison
from deeppool.units import format_seconds


def transfers(comparison: TransferComparison, *, dark: bool = False) -> go.Figure:
    """Draws a bar per method: computing, then waiting for transfers; a mark shows the time of all transfers.

    Args:
        comparison: methods on one model and cluster, by :func:`deeppool.compare_transfers`; predictions.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    require(comparison, TransferComparison, "transfers")
    methods = comparison.methods
    unit = time_unit(max(max(each.plan.iteration_time, each.plan.transfer_time) for each in methods))
    labels = [escape(each.method) for each in methods]
    figure = go.Figure(
        [
            _bars("computing", theme.BLUE, labels, [comparison.compute_time] * len(methods), methods, unit),
            _bars(
                "waiting for transfers",
                theme.ORANGE,
                labels,
                [each.plan.iteration_time - comparison.compute_time for each in methods],
                methods,
                unit,
            ),
            go.Scatter(
                name="all transfers",
                mode="markers",
                y=labels,
                x=[unit.of(each.plan.transfer_time) for each in methods],
                marker={"symbol": "diamond", "size": 9, "color": theme.neutral(dark=dark)},
                hovertemplate=f"%{{y}}: %{{x:.4g}} {unit.name} of transfers, predicted<extra></extra>",
            ),
        ]
    )
    figure.update_xaxes(title_text=f"time of an iteration ({unit.name})", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return theme.apply_theme(
        figure,
        title=f"How {escape(comparison.model)} sends gradients on {comparison.cluster.gpus} GPUs",
        subtitle=f"<b>predicted</b> from {comparison.provenance} layer times ({escape(comparison.device_name)}), "
        f"global batch {comparison.global_batch}; {escape(comparison.cluster.name)}",
        plot_height=max(160, 34 * len(methods)),
        heading_height=0,
        dark=dark,
    ).update_layout(barmode="stack")


def _bars(
    name: str,
    colour: str,
    labels: list[str],
    seconds: list[float],
    methods: tuple[MethodTransfers, ...],
    unit: TimeUnit,
) -> go.Bar:
    return go.Bar(
        orientation="h",
        name=name,
        y=labels,
        x=[unit.of(each) for each in seconds],
        marker={"color": colour},
        customdata=[
            [
                format_seconds(each.plan.iteration_time),
                f"{each.plan.utilisation:.0%}",
                f"{each.plan.hidden_share:.0%}",
                len(each.plan.transfers),
            ]
            for each in methods
        ],
        hovertemplate=f"<b>%{{y}}</b>, {name}: %{{x:.4g}} {unit.name}<br>%{{customdata[0]}} an iteration, utilisation "
        "%{customdata[1]}, %{customdata[2]} of %{customdata[3]} transfers' time hidden, predicted<extra></extra>",
    )

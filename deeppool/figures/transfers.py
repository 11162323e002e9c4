"""Iterations that differ in how gradients are sent: computing, and waiting for transfers."""

from dataclasses import dataclass

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, escape, time_unit
from deeppool.records.measured_transfers import MeasuredTransfers
from deeppool.simulation.transfers.comparison import TransferComparison
from deeppool.units import format_count, format_seconds


@typed
def transfers(compared: TransferComparison | MeasuredTransfers, *, dark: bool = False) -> go.Figure:
    """Draws a bar per method: computing, then waiting for transfers; a mark shows the time of all its transfers.

    Of measured iterations the bar ends at the median, with the fastest and the slowest one, and another mark shows the
    iteration that its plan predicts.

    Args:
        compared: methods on one model, simulated by :func:`deeppool.compare_transfers` or measured by
            :func:`deeppool.measure_transfers`.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    if isinstance(compared, MeasuredTransfers):
        rows, subtitle = _measured(compared), _measured_subtitle(compared)
        ranks = f"{compared.ranks} ranks"
    else:
        rows, subtitle = _predicted(compared), _predicted_subtitle(compared)
        ranks = format_count(compared.cluster.gpus, "GPU")
    unit = time_unit(max(max(row.iteration, row.transfers or 0.0, row.slowest) for row in rows))
    figure = go.Figure(
        [
            _bars("computing", theme.BLUE, rows, [min(row.computing, row.iteration) for row in rows], unit),
            _bars(
                "waiting for transfers",
                theme.ORANGE,
                rows,
                [max(0.0, row.iteration - row.computing) for row in rows],
                unit,
                spread=True,
            ),
            _marks("all transfers", "diamond", theme.neutral(dark=dark), rows, [row.transfers for row in rows], unit),
        ]
    )
    if isinstance(compared, MeasuredTransfers):
        predicted = [row.predicted for row in rows]
        figure.add_trace(_marks("predicted iteration", "line-ns-open", theme.VERMILLION, rows, predicted, unit))
    figure.update_xaxes(title_text=f"time of an iteration ({unit.name})", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return theme.apply_theme(
        figure,
        title=f"How {escape(compared.model)} sends gradients on {ranks}",
        subtitle=subtitle,
        plot_height=max(160, 34 * len(rows)),
        dark=dark,
    ).update_layout(barmode="stack")


@dataclass(frozen=True, slots=True)
class _Row:
    method: str
    iteration: float
    computing: float
    transfers: float | None
    told: str
    """Text of a hover."""
    predicted: float | None = None
    fastest: float = 0.0
    slowest: float = 0.0


def _predicted(compared: TransferComparison) -> list[_Row]:
    return [
        _Row(
            each.method,
            each.plan.iteration_time,
            compared.compute_time,
            each.plan.transfer_time,
            f"{format_seconds(each.plan.iteration_time)} an iteration, utilisation {each.plan.utilisation:.0%}, "
            f"{each.plan.hidden_share:.0%} of {len(each.plan.transfers)} transfers' time hidden, predicted",
        )
        for each in compared.methods
    ]


def _measured(compared: MeasuredTransfers) -> list[_Row]:
    return [
        _Row(
            each.name,
            each.median,
            # What fewer ranks wait for was not measured.
            each.median if each.transfers_alone is None else compared.compute_time,
            each.transfers_alone,
            f"{format_seconds(each.median)} an iteration ({format_seconds(min(each.seconds))} to "
            f"{format_seconds(max(each.seconds))}), measured{compared.about(each)}",
            each.predicted,
            min(each.seconds),
            max(each.seconds),
        )
        for each in compared.ways
    ]


def _predicted_subtitle(compared: TransferComparison) -> str:
    return (
        f"<b>predicted</b> from {compared.provenance} layer times ({escape(compared.device_name)}), global batch "
        f"{compared.global_batch}; {escape(compared.cluster.name)}"
    )


def _measured_subtitle(compared: MeasuredTransfers) -> str:
    return (
        f"<b>measured</b> on {escape(compared.device_name)}, global batch {compared.global_batch}, "
        f"{format_count(compared.repetitions, 'repetition')} by turns: medians (fastest - slowest); one mark is "
        "<b>predicted</b>"
    )


def _bars(
    name: str, colour: str, rows: list[_Row], seconds: list[float], unit: TimeUnit, *, spread: bool = False
) -> go.Bar:
    ends = {
        "array": [unit.of(max(0.0, row.slowest - row.iteration)) for row in rows],
        "arrayminus": [unit.of(row.iteration - row.fastest) for row in rows],
        "thickness": 1.2,
    }
    return go.Bar(
        orientation="h",
        name=name,
        y=[escape(row.method) for row in rows],
        x=[unit.of(each) for each in seconds],
        error_x=ends if spread and rows[0].slowest else None,
        marker={"color": colour},
        customdata=[[row.told] for row in rows],
        hovertemplate=f"<b>%{{y}}</b>, {name}: %{{x:,.4~r}} {unit.name}<br>%{{customdata[0]}}<extra></extra>",
    )


def _marks(
    name: str, symbol: str, colour: str, rows: list[_Row], seconds: list[float | None] | list[float], unit: TimeUnit
) -> go.Scatter:
    return go.Scatter(
        name=name,
        mode="markers",
        y=[escape(row.method) for row in rows],
        x=[None if each is None else unit.of(each) for each in seconds],
        marker={"symbol": symbol, "size": 10, "color": colour, "line": {"width": 2}},
        hovertemplate=f"%{{y}}, {name}: %{{x:,.4~r}} {unit.name}<extra></extra>",
    )

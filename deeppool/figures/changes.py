"""Changes between two records in percent: plans, runs, profiles, or a simulation against its run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape, shorten
from deeppool.planning.report.diff import PlanDiff, TotalChange
from deeppool.profiling.comparison import ProfileComparison
from deeppool.records.run_comparison import RunComparison, format_value
from deeppool.simulation.plan.fidelity import Fidelity
from deeppool.units import format_bytes, format_growth, format_rate, format_seconds

MOST_ROWS = 40
"""Rows that fit on a page; the largest changes are drawn."""


@dataclass(frozen=True, slots=True)
class Change:
    """One bar."""

    name: str
    percent: float
    values: str
    """Values before and after, for the hover text."""
    noise: float | None = None
    """Percent that noise alone explains, in either direction; None: unknown."""
    relative: bool = True
    """Whether it is relative to the value before."""


@typed
def changes(record: PlanDiff | RunComparison | ProfileComparison | Fidelity, *, dark: bool = False) -> go.Figure:
    """Draws a bar per value that changed, with the range that noise alone explains where it is known.

    Args:
        record: two plans, two runs or two profiles compared, or a simulation compared with its run.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    match record:
        case PlanDiff():
            title, axis = f"{record.model}: two plans", "change (%; of a layer: percent of the iteration before)"
            return draw_changes(_of_plans(record), title, "<b>predicted</b>", axis, dark=dark)
        case RunComparison():
            rows, axis = _of_runs(record), "change (%; of shares: points)"
            subtitle = f"<b>measured</b>; before: {escape(record.before)}<br>after: {escape(record.after)}"
            return draw_changes(rows, "Two runs", subtitle, axis, dark=dark)
        case ProfileComparison():
            subtitle = f"before: {escape(record.before)}<br>after: {escape(record.after)}"
            return draw_changes(
                _of_profiles(record), f"{record.model}: two profiles", subtitle, "change (%)", dark=dark
            )
        case Fidelity():
            rows = []
            for x in record.quantities:
                values = f"simulated {x.text_of(x.simulated)}, measured {x.text_of(x.measured)}"
                rows.append(Change(x.name.rstrip(", "), 100 * x.error, values))
            subtitle = f"<b>measured</b> with {escape(record.where)}, {record.date}; {escape(record.interference)}"
            return draw_changes(rows, f"{record.model}: error of the simulation", subtitle, "error (%)", dark=dark)


def draw_changes(
    rows: Sequence[Change],
    title: str,
    subtitle: str,
    axis: str,
    *,
    range_name: str = "noise alone explains up to",
    dark: bool,
) -> go.Figure:
    """Draws bars of changes; those within the noise are pale.

    Args:
        rows: changes in the order of the figure; beyond :data:`MOST_ROWS` the smallest are left out.
        title: not escaped yet.
        subtitle: escaped, with where the values are from.
        axis: title of the axis.
        range_name: meaning of a row's ``noise``.
        dark: whether the page is dark.
    """
    kept = sorted(rows, key=lambda row: -abs(row.percent))[:MOST_ROWS]
    shown = [row for row in rows if row in kept]
    left_out = f"; the {len(shown)} largest of {len(rows)} changes" if len(shown) < len(rows) else ""
    places = list(range(len(shown)))
    texts = [format_growth(row.percent / 100) if row.relative else f"{row.percent:+.1f} %" for row in shown]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            name="change",
            y=places,
            x=[row.percent for row in shown],
            marker_color=[
                theme.soft(dark=dark) if row.noise is not None and abs(row.percent) <= row.noise else theme.BLUE
                for row in shown
            ],
            text=texts,
            hovertext=[f"<b>{escape(row.name)}</b><br>{escape(row.values)}: {texts[i]}" for i, row in enumerate(shown)],
            hoverinfo="text",
            showlegend=False,
        )
    )
    noisy = [place for place in places if shown[place].noise is not None]
    if noisy:
        figure.add_scatter(
            name=range_name,
            mode="markers",
            y=noisy,
            x=[0.0 for _ in noisy],
            marker={"size": 1, "color": theme.VERMILLION},
            error_x={"array": [shown[place].noise for place in noisy], "color": theme.VERMILLION, "thickness": 1.2},
            hoverinfo="skip",
        )
    figure.add_vline(x=0, line={"width": 1, "color": theme.neutral(dark=dark)})
    figure.update_xaxes(title_text=axis)
    figure.update_yaxes(theme.named_rows([escape(shorten(row.name, 40)) for row in shown]))
    if not shown:
        figure.add_annotation(text="nothing changed", showarrow=False, xref="paper", yref="paper", x=0.5, y=0.5)
    return theme.apply_theme(
        figure,
        title=escape(title),
        subtitle=f"{subtitle}{left_out}",
        plot_height=max(120, 24 * len(shown)),
        dark=dark,
    )


def _of_plans(record: PlanDiff) -> list[Change]:
    totals: list[tuple[str, TotalChange | None, Callable[[float], str]]] = [
        ("iteration time", record.iteration_time, format_seconds),
        ("GPU-seconds", record.gpu_seconds, format_seconds),
        ("amplification", record.amplification, format_rate),
        ("memory of the fullest GPU", record.memory, format_bytes),
    ]
    rows = [
        Change(name, 100 * total.change / total.before, f"{written(total.before)} → {written(total.after)}")
        for name, total, written in totals
        if total is not None and total.before
    ]
    whole = record.iteration_time.before
    for layer in record.layers:
        counts = f"{len(layer.before.gpus)} → {len(layer.after.gpus)} GPUs"
        values = f"{counts}, {_seconds(layer.before.time, layer.after.time)}"
        rows.append(Change(f"{layer.name} ({counts})", 100 * layer.change / whole, values, relative=False))
    return rows


def _of_runs(record: RunComparison) -> list[Change]:
    rows = []
    for figure in record.figures:
        if figure.before is None or figure.after is None or not (figure.before or figure.unit == "share"):
            continue
        scale = 100.0 if figure.unit == "share" else 100 / abs(figure.before)
        noise = None if figure.noise is None else scale * figure.noise
        values = f"{format_value(figure.before, figure.unit)} → {format_value(figure.after, figure.unit)}"
        rows.append(Change(figure.name, scale * (figure.after - figure.before), values, noise))
    return rows


def _of_profiles(record: ProfileComparison) -> list[Change]:
    rows = [
        Change(f"iteration, batch {batch}", 100 * (after / before - 1), _seconds(before, after))
        for batch, before, after in zip(
            record.batch_sizes, record.iteration_before, record.iteration_after, strict=True
        )
        if before
    ]
    for change in record.changes:
        more = f" and {len(change.layers) - 1} alike" if len(change.layers) > 1 else ""
        name = f"{change.layers[0]}{more}, batch {change.batch}"
        rows.append(Change(name, 100 * change.change, _seconds(change.before, change.after), 100 * change.noise))
    return rows


def _seconds(before: float, after: float) -> str:
    return f"{format_seconds(before)} → {format_seconds(after)}"

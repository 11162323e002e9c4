"""Ways to train one model: what each gains over its fastest control, measured, and over DDP where it is predicted."""

import plotly.graph_objects as go

from deeppool.advice.record import Advice
from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.records.measured_ways import MeasuredWays
from deeppool.units import format_count, format_seconds


@typed
def ways(record: MeasuredWays, predicted: Advice | None = None, *, dark: bool = False) -> go.Figure:
    """Draws samples per second over those of the fastest control, with 95 % intervals.

    A technique has to beat what changes the training as it does, too; every bar says which control it is compared with.

    Args:
        record: by :func:`deeppool.compare_techniques`.
        predicted: advice on the same model and cluster, whose gains are drawn as marks. They are over the fastest
            training by DDP, as an advice has no other control.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    rows = record.ways
    gains = [record.standing(way.name) for way in rows]
    labels = [escape(way.name) for way in rows]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            name="measured, over the fastest control",
            y=labels,
            x=[gain for (gain, _, _), _ in gains],
            error_x=theme.interval_bars([gain for gain, _ in gains]),
            marker_color=theme.BLUE,
            hovertext=[
                f"{escape(words)}<br>{format_seconds(record.round_time(way))} a round of {way.samples} samples"
                + (f"<br>{escape(way.note)}" if way.note else "")
                for way, (_, words) in zip(rows, gains, strict=True)
            ],
            hoverinfo="text",
        )
    )
    if predicted is not None:
        known = {finding.technique: finding.gain for finding in predicted.findings}
        marks = [known.get(way.technique) for way in rows]
        figure.add_scatter(
            name="predicted, over DDP",
            mode="markers",
            y=labels,
            x=marks,
            marker={"symbol": "diamond", "size": 9, "color": theme.VERMILLION},
            hovertemplate="%{y}, predicted: %{x:.2f} times DDP where it is fastest<extra></extra>",
        )
    figure.add_vline(x=1, line={"dash": "dot", "width": 1.5, "color": theme.neutral(dark=dark)})
    # The legend, which there is with marks, says which control.
    control = "the fastest control" if predicted is None else "the control"
    figure.update_xaxes(title_text=f"samples per second / those of {control}", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    late = f", one rank {format_seconds(record.late)} late" if record.late else ""
    return theme.apply_theme(
        figure,
        title=f"{escape(record.model)}, batch {record.global_batch} on {record.ranks} ranks{late}",
        subtitle=f"<b>measured</b> on {escape(record.device_name)}, "
        f"{format_count(record.repetitions, 'repetition')} by turns (lines: 95 % confidence)"
        f"{'' if predicted is None else '; marks <b>predicted</b>'}",
        plot_height=max(160, 34 * len(rows)),
        dark=dark,
    )

"""What each technique gains over data parallelism, as the advice compares it."""

import plotly.graph_objects as go

from deeppool.advice.record import Advice
from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.units import format_count

_COLOURS = {"yes": theme.GREEN, "no": theme.BLUE, "unknown": theme.ORANGE}


@typed
def advice(found: Advice, *, dark: bool = False) -> go.Figure:
    """Draws the predicted gain of each technique as a bar; where there is no prediction, there is no bar."""
    known = [finding for finding in found.findings if finding.gain is not None][::-1]
    figure = go.Figure(
        go.Bar(
            x=[finding.gain for finding in known],
            y=[finding.technique for finding in known],
            orientation="h",
            marker_color=[_COLOURS[finding.verdict] for finding in known],
            text=[f"{finding.gain:.2f}x: {finding.verdict}" for finding in known],
            hovertext=[escape(finding.evidence) for finding in known],
            hoverinfo="text",
        )
    )
    figure.add_vline(x=1, line={"dash": "dot", "width": 1.5, "color": theme.neutral(dark=dark)})
    figure.update_xaxes(title_text="speed or throughput / that of the best way by DDP", rangemode="tozero")
    plan = found.plan
    return theme.apply_theme(
        figure,
        title=f"{escape(plan.model)}, batch {plan.global_batch} on {format_count(plan.gpus, 'GPU')}: what is worth it?",
        subtitle=f"predicted from layer times {plan.provenance} for {escape(plan.device_name)}",
        plot_height=60 + 45 * len(known),
        heading_height=19,
        dark=dark,
    )

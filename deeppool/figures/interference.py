"""Foreground throughput next to every background kernel, one heat map per arrangement (DeepPool, figure 12)."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.simulation.device.interference import Interference
from deeppool.units import format_rate, format_seconds

CELL = 34
"""Pixels of a class."""


@typed
def interference(found: Interference, *, dark: bool = False) -> go.Figure:
    """Draws throughput in percent of alone; rows are foreground kernels, columns background kernels.

    Args:
        found: measured pairs.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not an interference record.
    """
    names = [
        f"{format_rate(intensity)} FLOP/B, {format_seconds(seconds)}"
        for intensity in found.intensities
        for seconds in found.durations
    ]
    panels = len(found.arrangements)
    waits = "" if found.waits is None else f"<br>{found.waits}"
    figure = make_subplots(1, panels, shared_yaxes=True, horizontal_spacing=0.02)
    for panel, beside in enumerate(found.arrangements, 1):
        figure.add_heatmap(
            z=[[100 * rate for rate in row] for row in beside.foreground],
            x=names,
            y=names,
            coloraxis="coloraxis",
            texttemplate="%{z:.0f}",
            customdata=[[100 * rate for rate in row] for row in beside.background],
            hovertemplate=(
                f"<b>{escape(beside.name)}</b><br>foreground %{{y}}: %{{z:.0f}} % of alone<br>"
                "background %{x}: %{customdata:.0f} % of alone<extra></extra>"
            ),
            row=1,
            col=panel,
        )
        figure.update_xaxes(title_text=f"background: {escape(beside.name)}", tickangle=-60, row=1, col=panel)
    figure.update_yaxes(title_text="foreground", autorange="reversed", row=1, col=1)
    figure.update_layout(
        coloraxis={"colorscale": "Cividis", "cmin": 0, "cmax": 100, "colorbar": {"title": {"text": "%"}}},
        width=max(900, 260 + panels * (CELL * len(names) + 20)),
    )
    where = f"{escape(found.device_name)}, {escape(found.date)}: {escape(found.method)}"
    return theme.apply_theme(
        figure,
        title="Throughput with a background, % of alone",
        subtitle=f"<b>{found.basis}</b> on {where}{waits}",
        # Room for the slanted names of the columns.
        plot_height=CELL * len(names) + 150,
        dark=dark,
    )

"""Operations per second that a GPU's data sheet allows, over the operations per byte of a kernel."""

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.device.datasheet import GpuSheet
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.units import format_bytes

INTENSITIES = [2 ** (quarter / 4) for quarter in range(-8, 49)]
"""Operations per byte of memory traffic."""


@typed
def roofline(sheet: GpuSheet, *, dark: bool = False) -> go.Figure:
    """Draws the roofline of a GPU for each precision: of the data sheet, and as far as large kernels reach.

    Args:
        sheet: data sheet of a GPU.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a data sheet.
    """
    figure = go.Figure()
    peaks = (
        ("fp32", sheet.fp32, sheet.reach.fp32, theme.SKY_BLUE),
        ("TF32", sheet.tf32, sheet.reach.tf32, theme.ORANGE),
        ("bf16 and fp16", sheet.half, sheet.reach.half, theme.BLUE),
    )
    for name, peak, reach, colour in peaks:
        if peak is None:
            continue
        for basis, top, bandwidth, dash in (
            ("data sheet", peak, sheet.bandwidth, "dot"),
            ("reached", peak * reach, sheet.bandwidth * sheet.reach.bandwidth, "solid"),
        ):
            figure.add_scatter(
                name=f"{name}, {basis}",
                mode="lines",
                x=INTENSITIES,
                y=[min(top, bandwidth * intensity) / 1e12 for intensity in INTENSITIES],
                line={"color": colour, "dash": dash},
                hovertemplate=f"{name}, {basis}: %{{y:,.3~r}} Top/s at %{{x:,.3~r}} op/B<extra></extra>",
            )
    figure.update_xaxes(title_text="operations per byte of memory traffic (log)", type="log", dtick=1)
    figure.update_yaxes(title_text="10¹² operations per second (log)", type="log", dtick=1)
    return theme.apply_theme(
        figure,
        title=f"{escape(sheet.title)}: {format_bytes(sheet.memory)}, {sheet.bandwidth / 1e9:,.0f} GB/s",
        subtitle=escape(sheet.source),
        plot_height=340,
        dark=dark,
    )

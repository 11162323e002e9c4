"""What kernels cost on a device, as a calibration measured them."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.device.calibration import Calibration
from deeppool.figures import theme
from deeppool.figures.formatting import escape

MEGABYTE = 1e6


@typed
def kernel_costs(record: Calibration, *, dark: bool = False) -> go.Figure:
    """Draws, for each family of kernels, the time of a launch, and of a megabyte and a billion operations.

    Args:
        record: calibration of a device.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a calibration.
    """
    costs = sorted(record.costs, key=lambda cost: cost.launch)
    names = [escape(cost.family) for cost in costs]
    figure = make_subplots(
        cols=2, shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=("a launch", "what it reads and computes")
    )
    figure.update_annotations(font_size=12)
    panels = (
        (1, "launch", theme.neutral(dark=dark), [1e6 * cost.launch for cost in costs]),
        (2, "a megabyte", theme.BLUE, [1e6 * MEGABYTE * cost.per_byte for cost in costs]),
        (2, "a billion operations of products", theme.VERMILLION, [1e6 * 1e9 * cost.per_flop for cost in costs]),
        (2, "a billion other operations", theme.ORANGE, [1e6 * 1e9 * cost.per_vector_flop for cost in costs]),
    )
    for column, name, colour, values in panels:
        # A cost of nothing has no place on a logarithmic axis.
        shown = [index for index, value in enumerate(values) if value > 0]
        figure.add_trace(
            go.Scatter(
                name=name,
                mode="markers",
                y=[names[index] for index in shown],
                x=[values[index] for index in shown],
                marker={"size": 8, "color": colour},
                hovertemplate=f"%{{y}}, {name}: %{{x:,.3~r}} us<extra></extra>",
                showlegend=column == 2,
            ),
            row=1,
            col=column,
        )
    figure.update_xaxes(title_text="us (log)", type="log", tickformat=",.4~r")
    figure.update_yaxes(categoryorder="array", categoryarray=names)
    return theme.apply_theme(
        figure,
        title=f"{escape(record.device_name)}: what kernels cost",
        subtitle=f"<b>measured</b> {record.date} with {record.networks} networks, {record.precision}; median error of "
        f"an iteration {100 * record.error:.1f} %",
        plot_height=max(200, 18 * len(costs)),
        heading_height=24,
        dark=dark,
    )

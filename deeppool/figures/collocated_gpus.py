"""A plan with a background job on its GPUs: what each GPU loses and harvests, as simulated."""

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.simulation.plan.collocated_plan import CollocatedPlan


@typed
def collocated_gpus(record: CollocatedPlan, *, dark: bool = False) -> go.Figure:
    """Draws per GPU the idle time of the foreground, the harvest of the background, and the slowdown.

    Args:
        record: simulation of a plan with a background job on each of its GPUs.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    places = list(range(len(record.gpus)))
    figure = go.Figure()
    bars = (
        ("idle without the background", theme.colour("idle", dark=dark), [x.idle_share for x in record.gpus]),
        ("background, of alone", theme.colour("background", dark=dark), [x.harvest for x in record.gpus]),
        ("slowdown of the foreground", theme.BLUE, [x.slowdown for x in record.gpus]),
    )
    for name, colour, shares in bars:
        figure.add_bar(
            name=name,
            x=places,
            y=[100 * share for share in shares],
            marker_color=colour,
            hovertemplate=f"GPU %{{x}}, {name}: %{{y:.1f}} %<extra></extra>",
        )
    figure.update_layout(barmode="group")
    figure.update_xaxes(title_text="GPU", dtick=max(1, len(places) // 32), showgrid=False)
    figure.update_yaxes(title_text="%")
    return theme.apply_theme(
        figure,
        title=f"{escape(record.model)} with {escape(record.background_model)} on its GPUs",
        subtitle=f"<b>predicted</b>: the iteration takes {100 * record.slowdown:.1f} % longer, at least; "
        f"{escape(record.interference)}",
        plot_height=300,
        dark=dark,
    )

"""What ways of sharing a device cost the foreground, against what they bring the background."""

from collections.abc import Sequence

import plotly.graph_objects as go

from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.simulation.collocated import CollocatedSimulation

COLOURS = (theme.BLUE, theme.VERMILLION, theme.GREEN, theme.ORANGE, theme.PURPLE, theme.SKY_BLUE)


def trade_off(simulations: Sequence[CollocatedSimulation], *, dark: bool = False) -> go.Figure:
    """A mark for each way of sharing: further left is better for the foreground, higher for the background.

    Args:
        simulations: of the same two jobs; predictions.
        dark: for a dark page.

    Raises:
        InvalidValueError: none, or something else.
    """
    wrong = next((one for one in simulations if not isinstance(one, CollocatedSimulation)), None)
    if wrong is not None or not simulations:
        what = "nothing" if wrong is None else f"a {type(wrong).__name__}"
        raise InvalidValueError(f"trade_off cannot draw {what}, it accepts CollocatedSimulations")
    figure = go.Figure(
        [
            go.Scatter(
                name=str(found.sharing),
                mode="markers",
                marker={"size": 11, "color": COLOURS[number % len(COLOURS)], "symbol": number // len(COLOURS)},
                x=[100 * found.slowdown],
                y=[100 * found.harvest],
                customdata=[[100 * found.p99_inflation, 100 * found.harvest_of_idle]],
                hovertemplate=(
                    "foreground %{x:.1f} % slower (p99 %{customdata[0]:.1f} %)<br>"
                    "background %{y:.1f} % of alone, %{customdata[1]:.0f} % of the idle time<extra></extra>"
                ),
            )
            for number, found in enumerate(simulations)
        ]
    )
    figure.add_hline(
        y=100 * simulations[0].idle_share,
        line={"dash": "dash", "width": 1.5, "color": theme.neutral(dark=dark)},
        annotation={"text": "idle time of the foreground alone", "font": {"color": theme.neutral(dark=dark)}},
        annotation_position="top right",
    )
    figure.update_xaxes(title_text="slowdown of the foreground (%)", rangemode="tozero")
    figure.update_yaxes(title_text="background, % of alone", range=[0, 105])
    figure.update_layout(legend={"orientation": "v"})
    return theme.dress(
        figure,
        title="What the foreground loses, what the background gains",
        subtitle=f"<b>predicted</b> on a virtual clock, {simulations[0].iterations} iterations each",
        plot_height=380,
        # A line of the legend for each beyond the first.
        heading_height=19 * (len(simulations) - 1),
        dark=dark,
    )

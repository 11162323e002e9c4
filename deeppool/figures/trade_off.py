"""What ways of sharing a device cost the foreground, against what they bring the background."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.labels import escape
from deeppool.job import RunRecord
from deeppool.simulation.collocated import CollocatedSimulation

COLOURS = (theme.BLUE, theme.VERMILLION, theme.GREEN, theme.ORANGE, theme.PURPLE, theme.SKY_BLUE)


@dataclass(frozen=True, slots=True)
class _Mark:
    """One way of sharing. Everything is a share of 1."""

    name: str
    slowdown: float
    p99_inflation: float
    harvest: float
    harvest_of_idle: float
    idle: float
    """Of the time of the foreground alone, over its GPUs."""


def trade_off(shared: Sequence[CollocatedSimulation] | Sequence[RunRecord], *, dark: bool = False) -> go.Figure:
    """A mark for each way of sharing: further left is better for the foreground, higher for the background.

    Args:
        shared: simulations (predicted), or live runs (measured), of the same two jobs; one of the two, never both.
        dark: for a dark page.

    Raises:
        InvalidValueError: none, something else, both kinds, or a run without a background.
    """
    marks, provenance = _marks(shared)
    figure = go.Figure([_trace(mark, number) for number, mark in enumerate(marks)])
    figure.add_hline(
        y=100 * sum(mark.idle for mark in marks) / len(marks),
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
        subtitle=provenance,
        plot_height=380,
        # A line of the legend for each beyond the first.
        heading_height=19 * (len(marks) - 1),
        dark=dark,
    )


def _marks(shared: Sequence[CollocatedSimulation] | Sequence[RunRecord]) -> tuple[list[_Mark], str]:
    """The marks, and where their numbers come from."""
    simulated = [one for one in shared if isinstance(one, CollocatedSimulation)]
    ran = [one for one in shared if isinstance(one, RunRecord)]
    wrong = next((one for one in shared if not isinstance(one, CollocatedSimulation | RunRecord)), None)
    if wrong is not None or not shared:
        what = "nothing" if wrong is None else f"a {type(wrong).__name__}"
        raise InvalidValueError(f"trade_off cannot draw {what}, it accepts CollocatedSimulations or RunRecords")
    if simulated and ran:
        raise InvalidValueError(
            f"trade_off got {len(simulated)} simulations and {len(ran)} live runs: predicted and measured are not "
            "mixed (draw a figure of each)"
        )
    if simulated:
        iterations = simulated[0].iterations
        return [_of_simulation(one) for one in simulated], (
            f"<b>predicted</b> on a virtual clock, {iterations} iterations each"
        )
    return [_of_run(one) for one in ran], f"<b>measured</b> with {escape(ran[0].where)}, {ran[0].date[:10]}"


def _of_simulation(found: CollocatedSimulation) -> _Mark:
    return _Mark(
        name=str(found.sharing),
        slowdown=found.slowdown,
        p99_inflation=found.p99_inflation,
        harvest=found.harvest,
        harvest_of_idle=found.harvest_of_idle,
        idle=found.idle_share,
    )


def _of_run(run: RunRecord) -> _Mark:
    front, back = run.foreground, run.background
    if back is None:
        raise InvalidValueError(
            f"the run of {run.model} under policy {run.policy} had no background (launch it with background=)"
        )
    idle = front.alone.idle_share
    bound = None if run.sharing is None else run.sharing.max_slowdown
    return _Mark(
        name=run.policy if bound is None else f"{run.policy}, at most {100 * bound:g} % slower",
        slowdown=front.slowdown,
        p99_inflation=front.iteration_time.p99 / front.alone.iteration_time.p99 - 1,
        harvest=back.harvest,
        harvest_of_idle=back.harvest_of_idle,
        idle=sum(idle) / len(idle),
    )


def _trace(mark: _Mark, number: int) -> go.Scatter:
    return go.Scatter(
        name=mark.name,
        mode="markers",
        marker={"size": 11, "color": COLOURS[number % len(COLOURS)], "symbol": number // len(COLOURS)},
        x=[100 * mark.slowdown],
        y=[100 * mark.harvest],
        customdata=[[100 * mark.p99_inflation, 100 * mark.harvest_of_idle]],
        hovertemplate=(
            "foreground %{x:.1f} % slower (p99 %{customdata[0]:.1f} %)<br>"
            "background %{y:.1f} % of alone, %{customdata[1]:.0f} % of the idle time<extra></extra>"
        ),
    )

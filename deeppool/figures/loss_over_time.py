"""Loss against time of trainings by several modes, and accuracy where it is known."""

import math
from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.runs.mode_comparison.record import ModePoint, ModeTraining

COLOURS = {
    "full": theme.VERMILLION,
    "straggler-aware": theme.ORANGE,
    "majority": theme.GREEN,
    "solo": theme.BLUE,
    "quorum": theme.PURPLE,
}


@typed
def loss_over_time(
    trainings: Sequence[ModeTraining], *, title: str = "Loss over time", subtitle: str = "measured", dark: bool = False
) -> go.Figure:
    """Draws a line for each training: the loss on data that is not trained on, or that of batches while it runs.

    Args:
        trainings: those of a comparison, or what is known of them so far.
        title: of the figure.
        subtitle: of the figure; it is escaped.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    scored = any(point.accuracy is not None for training in trainings for point in training.points)
    figure = make_subplots(cols=2 if scored else 1, horizontal_spacing=0.1)
    seen: set[str] = set()
    for training in trainings:
        first = training.mode not in seen
        seen.add(training.mode)
        figure.add_trace(_line(training, [_loss(point) for point in training.points], first=first), row=1, col=1)
        if scored:
            accuracies = [None if point.accuracy is None else 100 * point.accuracy for point in training.points]
            figure.add_trace(_line(training, accuracies, first=False), row=1, col=2)
    figure.update_xaxes(title_text="time (s)", rangemode="tozero")
    figure.update_yaxes(title_text="loss", row=1, col=1)
    if scored:
        figure.update_yaxes(title_text="accuracy (%)", row=1, col=2)
    return theme.apply_theme(
        figure, title=title, subtitle=escape(subtitle), plot_height=320, heading_height=19, dark=dark
    )


def _loss(point: ModePoint) -> float:
    return point.batch_loss if math.isnan(point.loss) else point.loss


def _line(training: ModeTraining, values: Sequence[float | None], *, first: bool) -> go.Scatter:
    return go.Scatter(
        name=training.mode,
        legendgroup=training.mode,
        showlegend=first,
        mode="lines+markers",
        x=[point.seconds for point in training.points],
        y=list(values),
        customdata=[[point.updates, training.seed] for point in training.points],
        line={"color": COLOURS[training.mode], "width": 1.5},
        marker={"size": 4},
        hovertemplate=f"{training.mode}: %{{y:,.4~r}} after %{{x:.1f}} s<br>%{{customdata[0]}} updates, seed "
        "%{customdata[1]}<extra></extra>",
    )

"""Search times of planners, as grouped bars."""

from collections.abc import Sequence

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.evaluation.experiments.search_times import SEARCHES, SearchTime
from deeppool.evaluation.figures.printed import printed_marks
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.units import format_seconds

_COLOURS = {"published": theme.ORANGE, "exact": theme.BLUE, "as run": theme.GREEN}


@typed
def search_times(times: Sequence[SearchTime]) -> go.Figure:
    """Draws bars for every model and GPU count, and what the paper prints.

    They are the published algorithm, and the exact search in both cost models.

    Args:
        times: results of :func:`deeppool.evaluation.experiments.search_times.search_times`.

    Raises:
        InvalidValueError: nothing to draw.
    """
    if not times:
        raise InvalidValueError("search_times got nothing to draw (give what search_times measured)")
    figure = go.Figure()
    for search in SEARCHES:
        own = [found for found in times if found.search == search]
        figure.add_bar(
            name=search if search == "as run" else f"{search}, paper's model",
            x=[[escape(found.model) for found in own], [f"{found.gpus:,} GPUs" for found in own]],
            y=[found.median for found in own],
            error_y={"type": "data", "array": [found.spread for found in own], "thickness": 1.2, "width": 3},
            marker={"color": _COLOURS[search]},
            offsetgroup=search,
            customdata=[[format_seconds(found.median), format_seconds(found.iteration_time)] for found in own],
            hovertemplate=f"%{{x}}, {search}: %{{customdata[0]}}<br>"
            "finds %{customdata[1]} an iteration<extra></extra>",
        )
    places = {
        f"{found.model}, {found.gpus} GPUs, {found.search}": found for found in times if found.search == SEARCHES[0]
    }
    for marks in printed_marks("table3", places):
        marks.x = [[escape(found.model) for found in marks.x], [f"{found.gpus:,} GPUs" for found in marks.x]]
        # On the bars of the search that they are of.
        marks.offsetgroup = SEARCHES[0]
        figure.add_trace(marks)
    ticks = theme.log_ticks(seconds for trace in figure.data for seconds in trace.y)
    figure.update_yaxes(title_text="seconds of a search (log)", type="log", **ticks)
    return theme.apply_theme(
        figure,
        title="Time to search for a plan",
        subtitle="<b>measured</b>, one thread, median and half the interquartile range",
        plot_height=340,
    ).update_layout(barmode="group", scattermode="group")

"""Groups of jobs that cross over: what each computes and sends in a step, and what the group takes."""

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape, time_unit
from deeppool.interleaving.crossover.pairing import Pairing, group_time
from deeppool.units import format_bytes, format_count, format_seconds


@typed
def pairing(record: Pairing, *, dark: bool = False) -> go.Figure:
    """Draws computing and communication of each job, by groups, with a mark where the group's round ends.

    Args:
        record: groups of jobs.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a pairing.
    """
    jobs = [(number, job) for number, group in enumerate(record.groups, start=1) for job in group]
    unit = time_unit(max(job.compute + job.communication for _, job in jobs))
    rows = list(range(len(jobs)))
    figure = go.Figure()
    for name, colour, seconds in (
        ("computing", theme.colour("forward"), [job.compute for _, job in jobs]),
        ("communication", theme.colour("sync"), [job.communication for _, job in jobs]),
    ):
        figure.add_bar(
            orientation="h",
            name=name,
            y=rows,
            x=[unit.of(value) for value in seconds],
            marker_color=colour,
            hovertext=[
                f"{escape(job.name)}, {name}: {format_seconds(value)}<br>{format_bytes(job.memory)} on a rank"
                f"<br>{escape(job.source)}"
                for (_, job), value in zip(jobs, seconds, strict=True)
            ],
            hoverinfo="text",
        )
    ends = [unit.of(group_time(record.groups[number - 1])) for number, _ in jobs]
    figure.add_scatter(
        name="round of the group",
        mode="markers",
        y=rows,
        x=ends,
        marker={"symbol": "line-ns-open", "size": 20, "line": {"width": 2.5}, "color": theme.ink(dark=dark)},
        hovertemplate="one step of every job of the group: %{x:,.4~r} " + unit.name + "<extra></extra>",
    )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title_text=f"time ({unit.name})", rangemode="tozero")
    figure.update_yaxes(theme.named_rows([f"group {number}: {escape(job.name)}" for number, job in jobs]))
    return theme.apply_theme(
        figure,
        title=f"{len(jobs)} jobs in {format_count(len(record.groups), 'group')}",
        subtitle=f"<b>predicted</b>: a step of each takes {format_seconds(record.round_time)} crossed over, "
        f"{format_seconds(record.data_parallel)} by DDP one after the other",
        plot_height=max(160, 34 * len(rows)),
        dark=dark,
    )

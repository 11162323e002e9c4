"""Jobs of a workload trace: when they arrive, and how many GPUs they ask for."""

from collections.abc import Sequence

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape, time_unit
from deeppool.simulation.cluster.workload import TraceJob, WorkloadTrace


@typed
def workload(trace: WorkloadTrace, *, dark: bool = False) -> go.Figure:
    """Draws the jobs by arrival and GPUs (above), and the number that has arrived (below).

    Args:
        trace: jobs and their arrivals.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a trace.
    """
    unit = time_unit(max(job.arrival for job in trace.jobs) or 1.0)
    axes = theme.stacked([0.6, 0.4], gap=0.08)
    axes["yaxis"] |= {"title": {"text": "GPUs asked for"}, "rangemode": "tozero"}
    axes["yaxis2"] |= {"title": {"text": "jobs so far"}, "rangemode": "tozero"}
    axes["xaxis2"] |= {"title": {"text": f"arrival ({unit.name})"}}
    figure = go.Figure(layout=axes)
    for role, colour in (("foreground", theme.BLUE), ("background", theme.colour("background", dark=dark))):
        jobs: Sequence[TraceJob] = sorted((job for job in trace.jobs if job.role == role), key=lambda job: job.arrival)
        if not jobs:
            continue
        arrivals = [unit.of(job.arrival) for job in jobs]
        figure.add_scatter(
            name=role,
            mode="markers",
            x=arrivals,
            # A job that takes whatever is free asks for none.
            y=[job.gpus or 0 for job in jobs],
            marker={"color": colour, "size": 7, "opacity": 0.7},
            hovertext=[
                f"<b>{escape(job.name)}</b>, {role}<br>{escape(job.source)}"
                + (f"<br>{job.iterations:,} iterations" if job.iterations else "")
                + (f"<br>{job.gpus:,} GPUs" if job.gpus else "<br>any GPUs")
                for job in jobs
            ],
            hoverinfo="text",
        )
        figure.add_scatter(
            name=f"{role}, so far",
            mode="lines",
            xaxis="x2",
            yaxis="y2",
            x=arrivals,
            y=list(range(1, len(jobs) + 1)),
            line={"color": colour, "shape": "hv"},
            showlegend=False,
        )
    return theme.apply_theme(
        figure,
        title=f"{escape(trace.name)}: {len(trace.jobs):,} job{'s' * (len(trace.jobs) != 1)}",
        subtitle=escape(trace.method),
        plot_height=360,
        dark=dark,
    )

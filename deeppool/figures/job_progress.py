"""Jobs of a Ray cluster: progress, state and GPUs."""

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.coordinator.history import ClusterStatus, JobRecord
from deeppool.figures import theme
from deeppool.figures.formatting import escape, gpu_ranges
from deeppool.units import format_count


@typed
def job_progress(status: ClusterStatus, *, dark: bool = False) -> go.Figure:
    """Draws a bar of progress per job, with its state and its GPUs.

    Args:
        status: jobs and GPUs of a cluster.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    rows = list(range(len(status.jobs)))
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=rows,
            x=[100 * _done(job) for job in status.jobs],
            marker_color=[
                theme.BLUE if job.role == "foreground" else theme.colour("background", dark=dark) for job in status.jobs
            ],
            text=[_state(job) for job in status.jobs],
            textposition="auto",
            hovertext=[escape(str(job)) for job in status.jobs],
            hoverinfo="text",
        )
    )
    figure.update_xaxes(title_text="updates done (%)", range=[0, 100])
    figure.update_yaxes(theme.named_rows([f"job {job.job}: {escape(job.model)}" for job in status.jobs]))
    used = sum(gpu.foreground is not None or gpu.background is not None for gpu in status.gpus)
    trouble = f"; {escape(status.trouble)}" if status.trouble else ""
    return theme.apply_theme(
        figure,
        title=f"{format_count(len(status.jobs), 'job')} on {escape(status.address)}",
        subtitle=f"{used} of {len(status.gpus)} GPUs in use{trouble}; green: background",
        plot_height=max(120, 34 * len(rows)),
        dark=dark,
    )


def _done(job: JobRecord) -> float:
    """Returns the part of the updates that is done; of a job without a number of updates, all once it has ended."""
    if not job.steps:
        return 1.0 if job.ended else 0.0
    return min(1.0, job.progress.update / job.steps)


def _state(job: JobRecord) -> str:
    gpus = f", {gpu_ranges(job.gpus)}" if job.gpus else f", wants {format_count(job.gpu_count, 'GPU')}"
    return f"{job.state}{gpus}"

"""Use of GPUs, cores and memory over time."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.telemetry.record import Telemetry

Lines = Mapping[str, Sequence[float | None]]
"""Values over time by the name of a line."""
GIB = 2**30


@typed
def telemetry(record: Telemetry, *, dark: bool = False) -> go.Figure:
    """Draws utilisation (left) and memory (right) over time.

    Args:
        record: samples of GPUs, cores and processes.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    figure = axes().update_annotations(font_size=12)
    times = [sample.time for sample in record.samples]
    for column, lines in enumerate((busy(record), memory(record)), start=1):
        for name, values in lines.items():
            figure.add_scatter(name=name, x=times, y=values, mode="lines", row=1, col=column)
    why = f"; no GPU: {escape(record.gpu_problem)}" if record.gpu_problem else ""
    return theme.apply_theme(
        figure,
        title="Use of GPUs, cores and memory",
        subtitle=f"<b>measured</b> from {escape(record.started)}, every {record.interval:g} s{why}",
        plot_height=260,
        heading_height=24,
        dark=dark,
    )


def axes() -> go.Figure:
    """Returns panels of utilisation and memory without lines."""
    figure = make_subplots(cols=2, subplot_titles=["busy (%)", "memory (GiB)"])
    figure.update_xaxes(title_text="seconds")
    figure.update_yaxes(range=[0, 104], col=1)
    return figure.update_yaxes(rangemode="tozero", col=2)


def busy(record: Telemetry) -> Lines:
    """Returns the utilisation in percent of each GPU, of its multiprocessors if measured, and of each core."""
    lines: dict[str, Sequence[float | None]] = {}
    for index in range(len(record.gpus)):
        gpus = [sample.gpus[index] for sample in record.samples]
        lines[f"GPU {index}"] = [_percent(gpu.utilisation) for gpu in gpus]
        if any(gpu.sm_activity is not None for gpu in gpus):
            lines[f"GPU {index}, multiprocessors"] = [_percent(gpu.sm_activity) for gpu in gpus]
    for index, core in enumerate(record.cores):
        lines[f"core {core}"] = [_percent(sample.cores[index]) for sample in record.samples]
    return lines


def memory(record: Telemetry) -> Lines:
    """Returns the GiB used on each GPU and by the processes of the run, and GiB available on the machine."""
    lines: dict[str, Sequence[float | None]] = {}
    for index in range(len(record.gpus)):
        lines[f"GPU {index}, memory"] = [
            None if (used := sample.gpus[index].memory) is None else used / GIB for sample in record.samples
        ]
    lines["this run"] = [sum(process.memory for process in sample.processes) / GIB for sample in record.samples]
    lines["available"] = [sample.memory_available / GIB for sample in record.samples]
    return lines


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share

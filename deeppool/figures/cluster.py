"""A simulated cluster over time: jobs on GPUs, and throughput."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, escape, gpu_ranges, shorten, time_unit
from deeppool.simulation.cluster.record import ClusterSimulation, Interval
from deeppool.units import format_count, format_rate, format_seconds

Kind = Literal["foreground", "background", "background in gaps"]

_HEIGHTS = (280, 180, 180)
"""Pixels of the three panels."""
_GAP = 44
_HEADINGS = ("<b>foregrounds</b>, by GPU", "<b>backgrounds</b>, by GPU", "<b>throughput</b> of the cluster")
_IN_GAPS = {False: "#8CD1BD", True: "#0B5A45"}
"""Lighter (dark page: darker) green for a background in a foreground's gaps, which uses only part of the GPU."""


@dataclass(frozen=True, slots=True)
class GpuBlock:
    """Adjacent GPUs that one job uses during one interval."""

    kind: Kind
    job: str
    first: int
    count: int
    start: float
    end: float
    share: float
    """Mean fraction of the time that the job uses: held by a foreground, or harvested by a background."""


@typed
def cluster(simulation: ClusterSimulation, *, dark: bool = False) -> go.Figure:
    """Draws foreground and background jobs on their GPUs, and the throughput of both, on one time axis.

    Args:
        simulation: simulation of a workload.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    unit = _unit(simulation.makespan)
    height = sum(_HEIGHTS) + _GAP * (len(_HEIGHTS) - 1)
    figure = make_subplots(
        rows=3, shared_xaxes=True, vertical_spacing=_GAP / height, row_heights=_HEIGHTS, subplot_titles=_HEADINGS
    )
    figure.update_annotations(x=0, xanchor="left", align="left", font_size=12)
    blocks = blocks_of(simulation)
    for kind in ("foreground", "background", "background in gaps"):
        mine = [block for block in blocks if block.kind == kind]
        if mine:
            row = 1 if kind == "foreground" else 2
            figure.add_trace(_bars(mine, simulation, unit, dark), row=row, col=1)
    for trace in _throughput(simulation, unit, dark):
        figure.add_trace(trace, row=3, col=1)
    for row in (1, 2):
        figure.update_yaxes(
            title_text="GPU", range=[simulation.cluster.gpus - 0.5, -0.5], fixedrange=True, nticks=9, row=row, col=1
        )
        if simulation.cluster.gpus <= 16:
            figure.update_yaxes(dtick=1, row=row, col=1)
    figure.update_yaxes(title_text="samples/s", rangemode="tozero", row=3, col=1)
    figure.update_xaxes(range=[0, unit.of(simulation.makespan) * 1.005])
    figure.update_xaxes(title_text=f"time from the start of the trace ({unit.name})", row=3, col=1)
    return theme.apply_theme(
        figure,
        title=f"{escape(simulation.trace)}: {simulation.strategy} on {format_count(simulation.cluster.gpus, 'GPU')}",
        subtitle=_subtitle(simulation),
        plot_height=height,
        heading_height=20,
        dark=dark,
    )


def blocks_of(simulation: ClusterSimulation) -> list[GpuBlock]:
    """Returns the blocks to draw: consecutive intervals of a job are joined, and adjacent GPUs grouped."""
    gpus: dict[tuple[Kind, str, float, float], list[tuple[int, float]]] = defaultdict(list)
    for group in simulation.groups:
        for kind, job, start, end, share in _merge_intervals(group.stints):
            gpus[kind, job, start, end] += [(gpu, share) for gpu in group.gpus]
    blocks = []
    for (kind, job, start, end), held in gpus.items():
        # Adjacent GPUs are as far from their places in the order.
        for _, adjacent in groupby(enumerate(sorted(held)), lambda one: one[1][0] - one[0]):
            run = [one for _, one in adjacent]
            share = sum(share for _, share in run) / len(run)
            blocks.append(GpuBlock(kind, job, run[0][0], len(run), start, end, share))
    return sorted(blocks, key=lambda block: (block.start, block.first))


def _merge_intervals(stints: tuple[Interval, ...]) -> Iterator[tuple[Kind, str, float, float, float]]:
    """Yields kind, job, start, end and mean share of each run of consecutive intervals with the same job, per role."""
    for kind_of, share in ((_foreground_key, "held"), (_background_key, "harvested")):
        for key, found in groupby(stints, kind_of):
            if key is not None:
                stretch = list(found)
                start, end = stretch[0].start, stretch[-1].end
                used = sum((stint.end - stint.start) * getattr(stint, share) for stint in stretch)
                yield (*key, start, end, used / (end - start))


def _foreground_key(stint: Interval) -> tuple[Kind, str] | None:
    return None if stint.foreground is None else ("foreground", stint.foreground)


def _background_key(stint: Interval) -> tuple[Kind, str] | None:
    if stint.background is None:
        return None
    return "background" if stint.foreground is None else "background in gaps", stint.background


def _bars(blocks: list[GpuBlock], simulation: ClusterSimulation, unit: TimeUnit, dark: bool) -> go.Bar:
    kind = blocks[0].kind
    order = {job.name: number for number, job in enumerate(simulation.jobs)}
    # Two blues, which stand for computing everywhere, distinguish consecutive jobs.
    blues = [(theme.BLUE, theme.SKY_BLUE)[order[block.job] % 2] for block in blocks]
    green = theme.colour("background", dark=dark)
    colours = {"foreground": blues, "background": green, "background in gaps": _IN_GAPS[dark]}
    whole, gpus = simulation.makespan, simulation.cluster.gpus
    return go.Bar(
        orientation="h",
        name=kind,
        y=[block.first + (block.count - 1) / 2 for block in blocks],
        width=[block.count - min(0.12, 0.12 * block.count) for block in blocks],
        base=[unit.of(block.start) for block in blocks],
        x=[unit.of(block.end - block.start) for block in blocks],
        marker={
            "color": colours[kind],
            "line": {"color": theme.paper(dark=dark), "width": 0.6},
        },
        text=[_block_label(block, whole, gpus) for block in blocks],
        textposition="inside",
        insidetextanchor="middle",
        insidetextfont={"size": 11},
        constraintext="inside",
        textangle=0,
        customdata=[
            [
                escape(block.job),
                gpu_ranges(range(block.first, block.first + block.count)),
                format_seconds(block.start),
                format_seconds(block.end - block.start),
                f"{100 * block.share:.0f}",
            ]
            for block in blocks
        ],
        hovertemplate=f"<b>%{{customdata[0]}}</b><br>{kind} on %{{customdata[1]}}, predicted<br>"
        "from %{customdata[2]} for %{customdata[3]}<br>%{customdata[4]} % of that time used<extra></extra>",
    )


def _block_label(block: GpuBlock, whole: float, gpus: int) -> str:
    """Returns the job's name if it fits into the block on a laptop screen."""
    name = shorten(block.job, 18)
    wide = 900 * (block.end - block.start) > (7 * len(name) + 8) * whole
    tall = _HEIGHTS[0 if block.kind == "foreground" else 1] * block.count > 13 * gpus
    return escape(name) if wide and tall else ""


def _throughput(simulation: ClusterSimulation, unit: TimeUnit, dark: bool) -> Iterator[go.Scatter]:
    steps = simulation.steps
    times = [unit.of(step.start) for step in steps] + [unit.of(steps[-1].end)]
    for role, colour in (("foreground", theme.BLUE), ("background", theme.colour("background", dark=dark))):
        values = [getattr(step, f"{role}_throughput") for step in steps]
        yield go.Scatter(
            name=f"{role} throughput",
            mode="lines",
            line={"shape": "hv", "width": 0.8, "color": colour},
            stackgroup="cluster",
            x=times,
            y=[*values, values[-1]],
            showlegend=False,
            hovertemplate=f"{role} %{{y:,.4~r}} samples/s<extra></extra>",
        )


def _unit(longest: float) -> TimeUnit:
    """Returns the unit of the time axis; cluster workloads take hours rather than milliseconds."""
    for unit in (TimeUnit("h", 3600.0), TimeUnit("min", 60.0)):
        if longest >= 5 * unit.seconds:
            return unit
    return time_unit(longest)


def _subtitle(simulation: ClusterSimulation) -> str:
    conditions = "" if simulation.conditions is None else f"; {escape(str(simulation.conditions))}"
    return (
        f"<b>predicted</b> from {simulation.provenance} layer times; {escape(simulation.interference)}{conditions}; "
        f"{100 * simulation.utilisation:.0f} % of GPU time in use, "
        f"{format_rate(simulation.foreground_throughput, 4)} + "
        f"{format_rate(simulation.background_throughput, 4)} samples/s"
    )

"""A collective's schedule: ranks down, rounds or seconds across, an arrow for each transfer, its chunks as colour."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from deeppool.base.arguments import typed
from deeppool.cluster.cluster import Cluster
from deeppool.collectives import schedule as data
from deeppool.costs.schedules import schedule_time, timed_transfers
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, escape, time_unit
from deeppool.units import format_bytes, format_seconds

_ROUND_WIDTH = 0.8
"""Part of a round's column that an arrow crosses."""
_LEGEND_ENTRIES = 8
"""Chunk ranges above which the hover text alone names them."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """A transfer as drawn."""

    transfer: data.Transfer
    start: float
    """Left end on the axis."""
    end: float
    text: str
    """Hover text."""


@typed
def schedule(
    steps: data.Schedule, cluster: Cluster | None = None, size: int | None = None, *, dark: bool = False
) -> go.Figure:
    """Draws the transfers of a schedule from rank to rank.

    Args:
        steps: the schedule.
        cluster: the time axis is in seconds as priced on this cluster; None: it counts rounds.
        size: bytes of the buffer; needed with a cluster.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else than a schedule, one without transfers, or only one of cluster and size.
    """
    if not steps.steps:
        raise InvalidValueError(f"{steps} has no transfers to draw (take two ranks or more)")
    if cluster is None or size is None:
        if (cluster is None) != (size is None):
            raise InvalidValueError("seconds need both a cluster and a size (or neither, for rounds)")
        arrows, axis, subtitle = _by_round(steps), "round", "in rounds, without times"
    else:
        whole = schedule_time(cluster, steps, size)
        unit = time_unit(whole)
        arrows, axis = _by_time(steps, cluster, size, unit), f"time ({unit.name})"
        subtitle = (
            f"<b>predicted</b> {format_seconds(whole)} for {format_bytes(size)} from the links of "
            f"{escape(cluster.name)}"
        )
    figure = go.Figure(_traces(arrows, steps.chunks, dark))
    figure.update_xaxes(title_text=axis, rangemode="tozero")
    if cluster is None:
        figure.update_xaxes(dtick=1 if steps.rounds <= 20 else None)
    figure.update_yaxes(title_text="rank", range=[steps.ranks - 0.5, -0.5], dtick=1 if steps.ranks <= 32 else None)
    return theme.apply_theme(
        figure,
        title=escape(str(steps)),
        subtitle=f"{subtitle}; filled arrows add to the receiver's chunks, open ones replace them",
        plot_height=max(160, min(900, 44 * steps.ranks)),
        dark=dark,
    )


def _by_round(steps: data.Schedule) -> list[Arrow]:
    return [
        Arrow(transfer, number, number + _ROUND_WIDTH, _text(transfer, f"round {number}"))
        for number, transfers in enumerate(steps.transfers())
        for transfer in transfers
    ]


def _by_time(steps: data.Schedule, cluster: Cluster, size: int, unit: TimeUnit) -> list[Arrow]:
    return [
        Arrow(
            timed.transfer,
            unit.of(timed.start),
            unit.of(timed.end),
            _text(
                timed.transfer,
                f"round {timed.round}, {format_bytes(timed.size)}<br>from {format_seconds(timed.start)} to "
                f"{format_seconds(timed.end)}, predicted",
            ),
        )
        for timed in timed_transfers(cluster, steps, size)
    ]


def _text(transfer: data.Transfer, when: str) -> str:
    what = "added to its own" if transfer.reduces else "in place of its own"
    return (
        f"<b>{_chunks(transfer.start, transfer.stop)}</b><br>rank {transfer.source} to rank {transfer.destination}, "
        f"{what}<br>{when}"
    )


def _chunks(start: int, stop: int) -> str:
    return f"chunk {start}" if stop == start + 1 else f"chunks {start}–{stop - 1}"


def _traces(arrows: Sequence[Arrow], chunks: int, dark: bool) -> list[go.Scatter]:
    """Returns one trace for each range of chunks: a browser takes long for a trace per transfer."""
    groups: dict[tuple[int, int], list[Arrow]] = defaultdict(list)
    for arrow in arrows:
        groups[arrow.transfer.start, arrow.transfer.stop].append(arrow)
    ranges = sorted(groups)
    if len(ranges) <= len(theme.OF_MANY):
        colours = list(theme.OF_MANY)
    else:
        colours = sample_colorscale(theme.ramp(dark=dark), [(start + stop) / 2 / chunks for start, stop in ranges])
    return [
        _trace(groups[key], _chunks(*key), colour, legend=len(ranges) <= _LEGEND_ENTRIES)
        for key, colour in zip(ranges, colours, strict=False)
    ]


def _trace(arrows: Sequence[Arrow], name: str, colour: str, *, legend: bool) -> go.Scatter:
    # Three points for each arrow: its ends, and a gap to the next one. Only the second has a marker.
    return go.Scatter(
        name=name,
        mode="lines+markers",
        x=[x for arrow in arrows for x in (arrow.start, arrow.end, None)],
        y=[y for arrow in arrows for y in (arrow.transfer.source, arrow.transfer.destination, None)],
        line={"color": colour, "width": 2},
        marker={
            "color": colour,
            "opacity": 1,
            "line": {"color": colour, "width": 1},
            "angleref": "previous",
            "size": [size for _ in arrows for size in (5, 12, 0)],
            "symbol": [
                symbol
                for arrow in arrows
                for symbol in ("circle", "arrow" if arrow.transfer.reduces else "arrow-open", "circle")
            ],
        },
        text=[text for arrow in arrows for text in (arrow.text, arrow.text, "")],
        hovertemplate="%{text}<extra></extra>",
        showlegend=legend,
    )

"""Activity of GPUs over time: one bar per span, one panel per timeline, a common time axis."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.base.number_checks import real_number
from deeppool.base.timeline import Span, SpanKind
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, escape, shorten, time_unit, wrap_lines
from deeppool.figures.timeline_rows import Row, Source, TimelinePanel, joined, panels_of
from deeppool.units import format_rate, format_seconds

Window = tuple[float, float]
"""Start and end in seconds from the start of the iteration."""
Bar = dict[str, object]
"""Properties of a plotly trace."""

MOST_BARS = 20_000
"""Bars of a panel above which spans thinner than a pixel are joined; a browser draws about 10,000 per second."""
MARK = 2.5
"""Width in pixels of the outline of a selected layer's spans."""
_LABELS = 40
_LEAST_LINES, _LINE = 2, 15
"""Lines of a heading that there is always room for, and the height of each in pixels."""
_ABOVE_HEADING, _BESIDE_HEADING = 2, 22
"""Pixels of the first panel's heading beside its lines, and of one between two panels."""


_WHOLE, _ABOVE, _BELOW = (-0.42, 0.84), (-0.42, 0.52), (0.12, 0.3)
"""Offset and width of a bar in a row of height 1, which what runs beside computing divides."""
_BESIDE_COMPUTING: tuple[tuple[SpanKind, ...], ...] = (("background",), ("reshard", "sync"))
"""Kinds that may divide a row; the first of them that overlap others do."""


@typed
def timeline(
    *sources: Source,
    title: str | None = None,
    window: Window | None = None,
    kinds: Collection[SpanKind] | None = None,
    relative: bool = False,
    selected: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Draws the activity of each GPU as bars coloured by kind, in panels on a common time axis.

    Args:
        sources: plans (replayed on a virtual clock), simulations, timelines, or live runs, whose
            prediction is drawn above the measurement; or panels made by :func:`panels_of`.
        title: title of the figure.
        window: visible range in seconds; bars far outside are omitted. None: the longest iteration.
        kinds: kinds of spans to draw; None: all.
        relative: whether each panel has an axis of its own, in percent of its iteration, so that iterations of unlike
            lengths can be compared; ``window`` is then in parts of the iteration, 0 to 1.
        selected: name of a layer whose spans are outlined.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: no source, one of an unsupported type, or a window that ends before it starts.
    """
    panels = panels_of(*sources)
    longest = max(panel.duration for panel in panels)
    ranges = [_visible(panel.duration if relative else longest, window, relative) for panel in panels]
    rows = [[seen.part_of(row, kinds) for row in panel.rows] for panel, seen in zip(panels, ranges, strict=True)]
    unwrapped = [_heading_text(panel) for panel in panels]
    texts = [wrap_lines(text, theme.SUBTITLE_WIDTH) for text in unwrapped]
    lines = [max(_LEAST_LINES, text.count("<br>") + 1) for text in texts]
    gap = _BESIDE_HEADING + _LINE * max(lines)
    plot_height = _row_height(max(map(len, rows))) * sum(map(len, rows)) + gap * (len(panels) - 1)
    axes = theme.stacked([len(found) for found in rows], gap=gap / plot_height if len(panels) > 1 else 0)
    bars: list[Bar] = []
    headings = []
    for number, (panel, found, seen) in enumerate(zip(panels, rows, ranges, strict=True), start=1):
        name = "" if number == 1 else str(number)
        axes[f"xaxis{name}"]["range"] = (
            seen.axis_range if window is not None else [0, seen.unit.of(seen.end) * 1.005 or 1]
        )
        axes[f"yaxis{name}"] |= _gpu_axis(found)
        headings.append(_heading(texts[number - 1], axes[f"yaxis{name}"]))
        bars += [{**bar, "xaxis": f"x{name}", "yaxis": f"y{name}"} for bar in _bars(panel, found, seen, selected, dark)]
    _one_legend(bars)
    lowest = f"xaxis{len(panels)}" if len(panels) > 1 else "xaxis"
    axes[lowest]["title"] = {"text": f"time from the start of the iteration ({ranges[0].unit.name})"}
    heading = escape(title or "One iteration, GPU by GPU")
    layout = theme.theme_layout(
        title=heading, plot_height=plot_height, heading_height=_ABOVE_HEADING + _LINE * lines[0], dark=dark
    )
    if unwrapped != texts:
        # From which deeppool.figures.page_width wraps them for a narrow page.
        layout["meta"] = {"headings": unwrapped}
    # Built as one dictionary, which plotly validates once: this figure is redrawn while a slider moves.
    return go.Figure({"data": bars, "layout": {**layout, **axes, "annotations": headings}})


@dataclass(frozen=True, slots=True)
class VisibleRange:
    """The visible range of the time axis."""

    start: float
    end: float
    unit: TimeUnit

    @property
    def width(self) -> float:
        """Width in seconds."""
        return self.end - self.start

    @property
    def axis_range(self) -> list[float]:
        """Start and end in the axis's unit."""
        return [self.unit.of(self.start), self.unit.of(self.end)]

    def part_of(self, row: Row, kinds: Collection[SpanKind] | None) -> Row:
        """Returns the visible spans of some kinds, and those up to one width outside, for panning by mouse."""
        first, last = self.start - self.width, self.end + self.width
        near = (span for span in row.spans if span.end >= first and span.start <= last)
        return replace(row, spans=tuple(span for span in near if kinds is None or span.kind in kinds))


def _visible(duration: float, window: Window | None, relative: bool) -> VisibleRange:
    """Returns the visible range of a panel whose axis is as long as the duration."""
    start, end = (0.0, duration) if window is None else _checked(window)
    if not relative:
        return VisibleRange(start, end, time_unit(duration))
    duration = duration or 1.0
    start, end = (start, end) if window is None else (start * duration, end * duration)
    return VisibleRange(start, end, TimeUnit("% of it", duration / 100))


def _checked(window: Window) -> Window:
    start, end = (real_number("window", bound) for bound in window)
    if not start < end:
        raise InvalidValueError(
            f"window must start before it ends, got {start:g} s to {end:g} s (None shows everything)"
        )
    return start, end


def _heading_text(panel: TimelinePanel) -> str:
    """Returns a panel's heading: what its times are based on, and below it what it shows."""
    held = 100 * panel.held
    percent = f"{held:.0f}" if held >= 1 else format_rate(held, 1)
    share = f", foreground holds {percent} % of GPU time" if panel.duration else ""
    basis = f" {panel.basis}" if panel.basis else ""
    return f"<b>{panel.provenance}</b>{basis}<br>{escape(panel.title)}: {format_seconds(panel.duration)}{share}"


def _heading(text: str, axis: Mapping[str, Any]) -> dict[str, object]:
    """Returns a panel's heading as an annotation above its axis."""
    return {
        "text": text,
        "font": {"size": 12},
        "align": "left",
        "showarrow": False,
        "x": 0,
        "xanchor": "left",
        "xref": "paper",
        "y": axis["domain"][1],
        "yanchor": "bottom",
        "yref": "paper",
    }


def _bars(panel: TimelinePanel, rows: list[Row], seen: VisibleRange, selected: str | None, dark: bool) -> Iterator[Bar]:
    """Yields one trace per kind, because a browser takes minutes for a trace per span."""
    if sum(len(row.spans) for row in rows) > MOST_BARS:
        rows = [replace(row, spans=joined(row.spans, seen.width / 1000)) for row in rows]
    # A bar of the whole row would hide what goes on at the same time.
    below: set[SpanKind] = next(filter(None, (_overlapping(rows, kinds) for kinds in _BESIDE_COMPUTING)), set())
    labels = [row.label for row in rows]
    by_kind: dict[SpanKind, list[tuple[int, Span]]] = defaultdict(list)
    for index, row in enumerate(rows):
        for span in row.spans:
            by_kind[span.kind].append((index, span))
    for kind in (kind for kind in theme.KINDS if kind in by_kind):
        spans = [span for _, span in by_kind[kind]]
        offset, width = part = _WHOLE if not below else _BELOW if kind in below else _ABOVE
        yield {
            "type": "bar",
            "orientation": "h",
            "name": kind,
            "legendgroup": kind,
            "legendrank": theme.KINDS.index(kind) + 1,
            "y": [index for index, _ in by_kind[kind]],
            "base": [seen.unit.of(span.start) for span in spans],
            "x": [seen.unit.of(span.duration) for span in spans],
            "offset": offset,
            "width": width,
            "marker": {"color": theme.colour(kind, dark=dark), "line": _outlines(spans, seen.width, selected, dark)},
            "text": [_bar_label(span, seen.width) for span in spans] if part == _WHOLE else None,
            "textposition": "inside",
            "insidetextanchor": "middle",
            "insidetextfont": {"size": 11},
            "constraintext": "inside",
            "textangle": 0,
            "customdata": [
                [escape(span.name), labels[index], format_seconds(span.start), format_seconds(span.duration)]
                for index, span in by_kind[kind]
            ],
            "hovertemplate": f"<b>%{{customdata[0]}}</b><br>{kind} on %{{customdata[1]}}, {panel.provenance}<br>"
            "starts at %{customdata[2]}, takes %{customdata[3]}<extra></extra>",
        }


def _overlapping(rows: list[Row], kinds: tuple[SpanKind, ...]) -> set[SpanKind]:
    """Returns those kinds of which a span overlaps one of another kind in some row."""
    return {kind for kind in kinds if any(_overlaps_others(row, kind) for row in rows)}


def _overlaps_others(row: Row, kind: SpanKind) -> bool:
    """Whether a span of a kind overlaps one of another kind; idle spans are such a kind."""
    # A measured transfer may end a moment after the computing that waits for it has begun.
    least = 0.0 if kind == "background" else max((span.end for span in row.spans), default=0.0) / 1000
    # The latest end of spans of other kinds, and of this one.
    ends = {False: -math.inf, True: -math.inf}
    for span in row.spans:
        own = span.kind == kind
        if min(ends[not own], span.end) - span.start > least:
            return True
        ends[own] = max(ends[own], span.end)
    return False


def _outlines(spans: list[Span], longest: float, selected: str | None, dark: bool) -> dict[str, object]:
    """Returns the lines that separate spans of one colour, none around thin spans, and that mark a layer's spans."""
    paper = theme.paper(dark=dark)
    width = [0.6 if span.duration > longest / 200 else 0 for span in spans]
    if selected is None or all(span.name != selected for span in spans):
        return {"color": paper, "width": width}
    marked = [span.name == selected for span in spans]
    return {
        "color": [theme.ink(dark=dark) if mark else paper for mark in marked],
        "width": [MARK if mark else thin for mark, thin in zip(marked, width, strict=True)],
    }


def _bar_label(span: Span, longest: float) -> str:
    """Returns the span's name if it fits on a laptop, where the axis has about 900 pixels."""
    name = shorten(span.name)
    wide = 900 * span.duration > (7 * len(name) + 8) * longest
    return escape(name) if wide and span.kind != "idle" else ""


def _row_height(rows: int) -> int:
    """Returns the height of a row in pixels, smaller for more rows."""
    return 34 if rows <= 4 else 28 if rows <= 16 else max(900 // rows, 4)


def _gpu_axis(rows: list[Row]) -> dict[str, object]:
    # Dragging then only zooms the time axis, and every GPU remains visible.
    return {**theme.named_rows([shorten(row.label) for row in rows], -(-len(rows) // _LABELS)), "fixedrange": True}


def _one_legend(bars: list[Bar]) -> None:
    """Shows each kind in the legend once, also if only a later panel has it."""
    shown: set[object] = set()
    for bar in bars:
        bar["showlegend"] = bar["name"] not in shown
        shown.add(bar["name"])

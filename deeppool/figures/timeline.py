"""What each GPU does when: one bar per span, one panel per timeline, one time axis for all."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.labels import TimeUnit, escape, gpu_ranges, provenance, shorten, time_unit
from deeppool.job import RunRecord
from deeppool.planning.plan import Plan
from deeppool.simulation.replay import Simulation, simulate
from deeppool.timeline import Span, SpanKind, Timeline
from deeppool.units import format_seconds

Source = Plan | Simulation | RunRecord | Timeline

GROUPED_ABOVE = 32
"""GPUs in a timeline from which on those that do the same share a row."""
MOST_BARS = 20_000
"""Of a panel; a browser draws some 10,000 bars in a second, so spans thinner than a pixel are joined above it."""
_LABELS = 40
_GAP = 52
"""Pixels between two panels, for the heading of the lower one."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One timeline of a figure."""

    timeline: Timeline
    title: str
    basis: str = ""
    """What the times lean on, after the word predicted or measured."""


@dataclass(frozen=True, slots=True)
class Row:
    """GPUs that do the same at the same time, drawn once."""

    gpus: tuple[int, ...]
    spans: tuple[Span, ...]
    """Of the first of them, by start."""

    @property
    def label(self) -> str:
        """``GPU 4–7``."""
        return gpu_ranges(self.gpus)


@dataclass(frozen=True, slots=True)
class Lane:
    """Where in a row of height 1 a bar lies."""

    offset: float
    width: float


_WHOLE = Lane(-0.42, 0.84)


def timeline(*sources: Source, title: str | None = None, dark: bool = False) -> go.Figure:
    """Bars of what each GPU does, coloured by kind, one panel below the other on the same time axis.

    Args:
        sources: plans (replayed on a virtual clock), simulations, timelines, or live runs, whose
            prediction is drawn above what was measured.
        title: above all panels.
        dark: for a dark page.

    Raises:
        InvalidValueError: no source, or one that is none of these.
    """
    panels = [panel for source in sources for panel in _panels(source)]
    rows = [rows_of(panel.timeline) for panel in panels]
    if not panels or not all(rows):
        raise InvalidValueError("timeline got no GPU to draw, expected a Plan, Simulation, RunRecord or Timeline")
    longest = max(panel.timeline.duration for panel in panels)
    unit = time_unit(longest)
    plot_height = _row_height(max(map(len, rows))) * sum(map(len, rows)) + _GAP * (len(panels) - 1)
    figure = make_subplots(
        rows=len(panels),
        shared_xaxes=True,
        vertical_spacing=_GAP / plot_height if len(panels) > 1 else 0,
        row_heights=[len(found) for found in rows],
        subplot_titles=[_heading(panel) for panel in panels],
    )
    figure.update_annotations(x=0, xanchor="left", align="left", font_size=12)
    for number, (panel, found) in enumerate(zip(panels, rows, strict=True), start=1):
        for bar in _bars(panel.timeline, found, unit, longest, dark):
            figure.add_trace(bar, row=number, col=1)
        figure.update_yaxes(_gpu_axis(found), row=number, col=1)
    _one_legend(figure)
    figure.update_xaxes(range=[0, unit.of(longest) * 1.005 or 1])
    figure.update_xaxes(title_text=f"time from the start of the iteration ({unit.name})", row=len(panels), col=1)
    heading = escape(title or "One iteration, GPU by GPU")
    return theme.dress(figure, title=heading, plot_height=plot_height, heading_height=32, dark=dark)


def rows_of(source: Timeline) -> list[Row]:
    """One row per GPU; above ``GROUPED_ABOVE`` GPUs, one row for all that do the same."""
    spans: dict[int, list[Span]] = {gpu: [] for gpu in range(source.gpus)}
    for span in source.spans:
        spans.setdefault(span.gpu, []).append(span)
    ordered = {gpu: tuple(sorted(own, key=lambda span: span.start)) for gpu, own in sorted(spans.items())}
    if len(ordered) <= GROUPED_ABOVE:
        return [Row((gpu,), own) for gpu, own in ordered.items()]
    same: dict[object, list[int]] = defaultdict(list)
    for gpu, own in ordered.items():
        same[tuple((span.kind, span.name, span.start, span.end) for span in own)].append(gpu)
    return [Row(tuple(gpus), ordered[gpus[0]]) for gpus in same.values()]


def joined(spans: tuple[Span, ...], thinnest: float) -> tuple[Span, ...]:
    """Joins neighbours of one kind that are shorter than ``thinnest`` seconds and touch.

    A joined span is named after its first and last, so nothing is lost but the hairline between them.
    """
    result: list[Span] = []
    names: list[str] = []
    for span in spans:
        last = result[-1] if result else None
        if (
            last
            and last.kind == span.kind
            and span.start - last.end < thinnest / 10
            and max(last.duration, span.duration) < thinnest
        ):
            result[-1] = Span(last.gpu, last.kind, f"{names[-1]} … {span.name}", last.start, span.end)
        else:
            result.append(span)
            names.append(span.name)
    return tuple(result)


def _panels(source: Source) -> list[Panel]:
    match source:
        case Plan():
            return [Panel(simulate(source).timeline, _plan_title(source), provenance(source))]
        case Simulation():
            return [Panel(source.timeline, source.timeline.title)]
        case RunRecord():
            where = f"with {escape(source.where)}"
            planned, live = source.plan_timeline, source.timeline
            return [Panel(planned, planned.title, "by the plan"), Panel(live, live.title, where)]
        case Timeline():
            return [Panel(source, source.title)]
    raise InvalidValueError(
        f"timeline cannot draw a {type(source).__name__}, it accepts a Plan, Simulation, RunRecord or Timeline"
    )


def _plan_title(plan: Plan) -> str:
    limit = "no limit" if plan.amplification_limit is None else f"limit {plan.amplification_limit:g}"
    return f"{plan.model}, batch {plan.global_batch}, {limit}"


def _heading(panel: Panel) -> str:
    source = panel.timeline
    held = sum(span.duration for span in source.spans if span.kind not in ("idle", "background"))
    capacity = source.gpus * source.duration
    share = f", foreground holds {100 * held / capacity:.0f} % of GPU time" if capacity else ""
    basis = f" {panel.basis}" if panel.basis else ""
    return f"<b>{source.provenance}</b>{basis}<br>{escape(panel.title)}: {format_seconds(source.duration)}{share}"


def _bars(source: Timeline, rows: list[Row], unit: TimeUnit, longest: float, dark: bool) -> Iterator[go.Bar]:
    """One trace per kind: a trace per span would take a browser minutes."""
    if sum(len(row.spans) for row in rows) > MOST_BARS:
        rows = [Row(row.gpus, joined(row.spans, longest / 1000)) for row in rows]
    lanes = _lanes(rows)
    by_kind: dict[SpanKind, list[tuple[int, Span]]] = defaultdict(list)
    for index, row in enumerate(rows):
        for span in row.spans:
            by_kind[span.kind].append((index, span))
    for kind in (kind for kind in theme.KINDS if kind in by_kind):
        spans = [span for _, span in by_kind[kind]]
        yield go.Bar(
            orientation="h",
            name=kind,
            legendgroup=kind,
            y=[index for index, _ in by_kind[kind]],
            base=[unit.of(span.start) for span in spans],
            x=[unit.of(span.duration) for span in spans],
            offset=lanes[kind].offset,
            width=lanes[kind].width,
            marker={"color": theme.colour(kind, dark=dark), "line": _hairlines(spans, longest, dark)},
            text=[_inscription(span, longest) for span in spans] if lanes[kind] == _WHOLE else None,
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"size": 11},
            constraintext="inside",
            textangle=0,
            customdata=[
                [escape(span.name), rows[index].label, format_seconds(span.start), format_seconds(span.duration)]
                for index, span in by_kind[kind]
            ],
            hovertemplate=f"<b>%{{customdata[0]}}</b><br>{kind} on %{{customdata[1]}}, {source.provenance}<br>"
            "starts at %{customdata[2]}, takes %{customdata[3]}<extra></extra>",
        )


def _lanes(rows: list[Row]) -> dict[SpanKind, Lane]:
    """Foreground and background share a row's height where they run at once, else each has it all."""
    if not any(_collocated(row) for row in rows):
        return dict.fromkeys(theme.KINDS, _WHOLE)
    lanes: dict[SpanKind, Lane] = dict.fromkeys(theme.KINDS, Lane(-0.42, 0.52))
    return {**lanes, "background": Lane(0.12, 0.3)}


def _collocated(row: Row) -> bool:
    """Whether a background span overlaps one of the foreground, which its idle spans belong to."""
    # A job's own spans do not overlap, so an overlap shows between neighbours by start.
    return any(a.end > b.start and (a.kind == "background") != (b.kind == "background") for a, b in pairwise(row.spans))


def _hairlines(spans: list[Span], longest: float, dark: bool) -> dict[str, object]:
    """Parts two layers of one colour; none around slivers, which it would cover."""
    return {"color": theme.paper(dark=dark), "width": [0.6 if span.duration > longest / 200 else 0 for span in spans]}


def _inscription(span: Span, longest: float) -> str:
    """The name of a span that is wide enough for it on a laptop, where the axis has some 900 pixels."""
    name = shorten(span.name)
    wide = 900 * span.duration > (7 * len(name) + 8) * longest
    return escape(name) if wide and span.kind != "idle" else ""


def _row_height(rows: int) -> int:
    """Pixels, so that few GPUs are easy to see and many still fit."""
    return 34 if rows <= 4 else 28 if rows <= 16 else max(900 // rows, 4)


def _gpu_axis(rows: list[Row]) -> dict[str, object]:
    step = -(-len(rows) // _LABELS)
    shown = range(0, len(rows), step)
    return {
        "tickvals": list(shown),
        "ticktext": [shorten(rows[index].label) for index in shown],
        "range": [len(rows) - 0.5, -0.5],
        "showgrid": False,
        # A drag then zooms in time alone, and every GPU stays in sight.
        "fixedrange": True,
    }


def _one_legend(figure: go.Figure) -> None:
    """Each kind once, in the order of kinds, also where a later panel brings one that the first lacks."""
    shown: set[str] = set()
    for bar in figure.data:
        bar.legendrank = theme.KINDS.index(bar.name) + 1
        bar.showlegend = bar.name not in shown
        shown.add(bar.name)

"""Panels and rows of a timeline figure; GPUs with identical activity share a row."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from deeppool.base.arguments import typed
from deeppool.base.timeline import Provenance, Span, Timeline, union
from deeppool.errors import InvalidValueError
from deeppool.figures.formatting import escape, gpu_ranges, plan_provenance
from deeppool.planning.plan import Plan
from deeppool.records.run_record import RunRecord
from deeppool.simulation.plan.simulate import GpuActivity, Simulation, replay

GROUPED_ABOVE = 32
"""Number of GPUs in a timeline above which those with identical activity share a row."""


@dataclass(frozen=True, slots=True)
class Row:
    """GPUs with identical activity, drawn once."""

    gpus: tuple[int, ...]
    spans: tuple[Span, ...]
    """Spans of the first GPU, ordered by start."""
    name: str = ""
    """Name, if it is not that of the GPUs."""

    @property
    def label(self) -> str:
        """Label such as ``GPU 4–7``."""
        return escape(self.name) or gpu_ranges(self.gpus)


@dataclass(frozen=True, slots=True)
class TimelinePanel:
    """One timeline of a figure."""

    title: str
    provenance: Provenance
    rows: tuple[Row, ...]
    basis: str = ""
    """Basis of the times, displayed after the word predicted or measured."""

    @property
    def duration(self) -> float:
        """Seconds from the start of the iteration to the last end."""
        return max((span.end for row in self.rows for span in row.spans), default=0.0)

    @property
    def timeline(self) -> Timeline:
        """The panel as a timeline record, with the spans of every GPU."""
        spans = {
            gpu: [Span(gpu, span.kind, span.name, span.start, span.end) for span in row.spans]
            for row in self.rows
            for gpu in row.gpus
        }
        everything = tuple(span for gpu in sorted(spans) for span in spans[gpu])
        return Timeline(self.title, self.provenance, len(spans), everything)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that the foreground holds; transfers beside its computing add nothing."""
        return sum(
            len(row.gpus) * (end - start)
            for row in self.rows
            for start, end in union((x.start, x.end) for x in row.spans if x.kind not in ("idle", "background"))
        )

    @property
    def held(self) -> float:
        """Fraction of all GPU time that the foreground holds."""
        capacity = self.duration * sum(len(row.gpus) for row in self.rows)
        return self.gpu_seconds / capacity if capacity else 0.0


Source = Plan | Simulation | RunRecord | Timeline | TimelinePanel


@typed
def panels_of(*sources: Source) -> tuple[TimelinePanel, ...]:
    """Returns the panels of plans (replayed on a virtual clock), simulations and runs, predicted before measured.

    Raises:
        InvalidValueError: no source, one without GPUs, or one that is none of these.
    """
    panels = tuple(panel for source in sources for panel in _panels_of_source(source))
    if not panels or not all(panel.rows for panel in panels):
        raise InvalidValueError("timeline got no GPU to draw, expected a Plan, Simulation, RunRecord or Timeline")
    return panels


def rows_of(source: Timeline) -> list[Row]:
    """Returns one row per GPU; above ``GROUPED_ABOVE`` GPUs, one row for all that do the same."""
    spans: dict[int, list[Span]] = {gpu: [] for gpu in range(source.gpus)}
    for span in source.spans:
        spans.setdefault(span.gpu, []).append(span)
    ordered = {gpu: tuple(sorted(own, key=lambda span: span.start)) for gpu, own in sorted(spans.items())}
    if source.rows:
        return [Row((gpu,), own, source.rows[gpu]) for gpu, own in ordered.items()]
    return _rows([GpuActivity((gpu,), own) for gpu, own in ordered.items()])


def _rows(groups: Sequence[GpuActivity]) -> list[Row]:
    if sum(len(group.gpus) for group in groups) <= GROUPED_ABOVE:
        each = [Row((gpu,), group.on(gpu)) for group in groups for gpu in group.gpus]
        return sorted(each, key=lambda row: row.gpus)
    same: dict[object, list[GpuActivity]] = defaultdict(list)
    for group in groups:
        same[tuple((span.kind, span.name, span.start, span.end) for span in group.spans)].append(group)
    return [Row(tuple(sorted(gpu for one in alike for gpu in one.gpus)), alike[0].spans) for alike in same.values()]


def joined(spans: tuple[Span, ...], thinnest: float) -> tuple[Span, ...]:
    """Joins adjacent spans of one kind that are shorter than ``thinnest`` seconds and touch.

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


def _panels_of_source(source: Source) -> list[TimelinePanel]:
    match source:
        case TimelinePanel():
            return [source]
        case Plan():
            return [
                TimelinePanel(_plan_title(source), "predicted", tuple(_rows(replay(source))), plan_provenance(source))
            ]
        case Simulation():
            return [_panel(source.timeline)]
        case RunRecord():
            where = f"with {escape(source.where)}"
            return [_panel(source.plan_timeline, "by the plan"), _panel(source.timeline, where)]
        case Timeline():
            return [_panel(source)]


def _panel(timeline: Timeline, basis: str = "") -> TimelinePanel:
    return TimelinePanel(timeline.title, timeline.provenance, tuple(rows_of(timeline)), basis)


def _plan_title(plan: Plan) -> str:
    limit = "no limit" if plan.amplification_limit is None else f"limit {plan.amplification_limit:g}"
    return f"{plan.model}, batch {plan.global_batch}, {limit}"

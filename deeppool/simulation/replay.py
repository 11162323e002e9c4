"""A plan on a virtual clock: what each GPU does when, and what a background job could take.

Layers run when the plan's schedule says (see ``deeppool.planning.schedule``), so the iteration takes
exactly the plan's iteration time. What a GPU does is one thing at a time: of an all-reduce that overlaps the
backward pass only the stretches in which its GPU would otherwise wait are spans. They are the foreground's,
since its kernels run there: no background job takes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from deeppool.planning.plan import LayerAssignment, Plan
from deeppool.planning.schedule import Schedule, alike, exposed, order_of, schedule
from deeppool.timeline import Span, SpanKind, Timeline
from deeppool.units import format_seconds


@dataclass(frozen=True, slots=True)
class Simulation:
    """One simulated iteration."""

    KIND: ClassVar[str] = "simulation"

    model: str
    gpus: int
    iteration_time: float
    gpu_seconds: float
    """Held by the foreground."""
    idle_gpu_seconds: float
    """Left for a background; together with ``gpu_seconds`` they are gpus x iteration_time."""
    background_samples: float | None
    """That a background job trains in the idle time of one iteration, if it takes all of it without interference."""
    timeline: Timeline

    def __str__(self) -> str:
        share = self.idle_gpu_seconds / (self.gpus * self.iteration_time)
        text = (
            f"{self.model} on {self.gpus} GPUs: {format_seconds(self.iteration_time)} an iteration, "
            f"{100 * share:.0f} % of GPU time idle"
        )
        if self.background_samples is not None:
            text += (
                f"; a background job would train {self.background_samples:.3g} samples in it (no interference modelled)"
            )
        return text


@dataclass(frozen=True, slots=True)
class AlikeGpus:
    """GPUs that do the same at the same time."""

    gpus: tuple[int, ...]
    spans: tuple[Span, ...]
    """Of the first of them, by start: the foreground's, and what fills the gaps between them."""

    def of(self, gpu: int) -> Iterator[Span]:
        """The spans of another of them."""
        return (Span(gpu, span.kind, span.name, span.start, span.end) for span in self.spans)


def simulate(plan: Plan, *, background_sample_time: float | None = None) -> Simulation:
    """Replays one iteration of a plan.

    Args:
        plan: what to replay.
        background_sample_time: seconds that a background job takes per sample on one GPU alone; it then
            fills every gap.
    """
    filling: SpanKind = "idle" if background_sample_time is None else "background"
    groups, end = replay(plan, filling)
    group_of = {gpu: group for group in groups for gpu in group.gpus}
    idle = sum(len(group.gpus) * _seconds(group, filling) for group in groups)
    return Simulation(
        model=plan.model,
        gpus=plan.gpus,
        iteration_time=end,
        gpu_seconds=sum(len(group.gpus) * (_seconds(group) - _seconds(group, filling)) for group in groups),
        idle_gpu_seconds=idle,
        background_samples=None if background_sample_time is None else idle / background_sample_time,
        timeline=Timeline(
            planned_title(plan),
            "predicted",
            plan.gpus,
            tuple(span for gpu in range(plan.gpus) for span in group_of[gpu].of(gpu)),
        ),
    )


def replay(plan: Plan, filling: SpanKind = "idle") -> tuple[tuple[AlikeGpus, ...], float]:
    """As :func:`simulate`, once for all GPUs that compute the same layers: on a thousand GPUs there are few kinds.

    Args:
        plan: what to replay.
        filling: what the gaps between the foreground's spans hold.

    Returns:
        The groups, by their first GPU, and the seconds of the iteration.
    """
    layers, gpus = plan.layers, plan.gpu_sets
    times = schedule(order_of(plan.tree, gpus), gpus, layers, overlap_sync=plan.overlap_sync)
    computed = alike(gpus)
    used = {gpu for same in computed.values() for gpu in same}
    computed[()] = [gpu for gpu in range(plan.gpus) if gpu not in used]
    groups = []
    for indices, same in computed.items():
        if same:
            held = sorted(_foreground(layers, times, indices, same[0]), key=lambda span: span.start)
            gaps = [Span(same[0], filling, filling, *gap) for gap in _between(held, times.iteration_time)]
            spans = sorted([*held, *gaps], key=lambda span: span.start)
            groups.append(AlikeGpus(tuple(same), tuple(spans)))
    return tuple(sorted(groups, key=lambda group: group.gpus[0])), times.iteration_time


def planned_title(plan: Plan) -> str:
    """Of a plan's timeline."""
    return f"{plan.model}, planned"


def _seconds(group: AlikeGpus, kind: SpanKind | None = None) -> float:
    """On one of the GPUs, of one kind or of all."""
    return sum(span.duration for span in group.spans if kind in (None, span.kind))


def _foreground(
    layers: Sequence[LayerAssignment], times: Schedule, computed: Sequence[int], gpu: int
) -> Iterator[Span]:
    """What one GPU does for the layers that it computes."""
    for index in computed:
        layer, name = layers[index], layers[index].name
        inputs, backward, gradients = times.inputs[index], times.backward[index], times.gradients[index]
        arrived = inputs + layer.reshard / 2
        stretches: tuple[tuple[SpanKind, float, float], ...] = (
            ("reshard", inputs, arrived),
            ("forward", arrived, arrived + layer.forward),
            ("backward", backward, backward + layer.backward),
            ("reshard", gradients, gradients + layer.reshard / 2),
        )
        yield from (Span(gpu, kind, name, start, end) for kind, start, end in stretches if end > start)
    for stretch in exposed(times, layers, computed):
        yield Span(gpu, "sync", layers[stretch.layer].name, stretch.start, stretch.end)


def _between(spans: Sequence[Span], end: float) -> Iterator[tuple[float, float]]:
    """The stretches before, between and after spans."""
    now = 0.0
    for span in spans:
        if span.start > now:
            yield now, span.start
        now = max(now, span.end)
    if end > now:
        yield now, end

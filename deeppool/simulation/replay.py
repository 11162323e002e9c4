"""A plan on a virtual clock: what each GPU does when, and what a background job could take.

Layers run when the plan's schedule says (see ``deeppool.planning.schedule``), so the iteration takes
exactly the plan's iteration time. What a GPU does is one thing at a time: of an all-reduce that overlaps the
backward pass only the stretches in which its GPU would otherwise wait are spans. They are the foreground's,
since its kernels run there: no background job takes them.
"""

from dataclasses import dataclass
from typing import ClassVar

from deeppool.planning.plan import LayerAssignment, Plan
from deeppool.planning.schedule import alike, exposed, order_of, schedule
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


def simulate(plan: Plan, *, background_sample_time: float | None = None) -> Simulation:
    """Replays one iteration of a plan.

    Args:
        plan: what to replay.
        background_sample_time: seconds that a background job takes per sample on one GPU alone; it then
            fills every gap.
    """
    spans, end = _foreground(plan)
    gaps = _gaps(spans, plan.gpus, end)
    held = sum(span.duration for span in spans)
    idle = sum(gap.duration for gap in gaps)
    kind: SpanKind = "idle" if background_sample_time is None else "background"
    filled = [Span(gap.gpu, kind, kind, gap.start, gap.end) for gap in gaps]
    return Simulation(
        model=plan.model,
        gpus=plan.gpus,
        iteration_time=end,
        gpu_seconds=held,
        idle_gpu_seconds=idle,
        background_samples=None if background_sample_time is None else idle / background_sample_time,
        timeline=Timeline(
            f"{plan.model}, planned", "predicted", plan.gpus, tuple(sorted([*spans, *filled], key=_by_gpu))
        ),
    )


def _by_gpu(span: Span) -> tuple[int, float]:
    return span.gpu, span.start


def _foreground(plan: Plan) -> tuple[list[Span], float]:
    layers, gpus = plan.layers, plan.gpu_sets
    times = schedule(order_of(plan.tree, gpus), gpus, layers, overlap_sync=plan.overlap_sync)
    spans: list[Span] = []

    def run(layer: LayerAssignment, kind: SpanKind, start: float, end: float) -> None:
        if end > start:
            spans.extend(Span(gpu, kind, layer.name, start, end) for gpu in layer.gpus)

    for index, layer in enumerate(layers):
        inputs, backward, gradients = times.inputs[index], times.backward[index], times.gradients[index]
        arrived = inputs + layer.reshard / 2
        run(layer, "reshard", inputs, arrived)
        run(layer, "forward", arrived, arrived + layer.forward)
        run(layer, "backward", backward, backward + layer.backward)
        run(layer, "reshard", gradients, gradients + layer.reshard / 2)
    for computed, same in alike(gpus).items():
        for stretch in exposed(times, layers, computed):
            name = layers[stretch.layer].name
            spans.extend(Span(gpu, "sync", name, stretch.start, stretch.end) for gpu in same)
    return spans, times.iteration_time


def _gaps(spans: list[Span], gpus: int, end: float) -> list[Span]:
    """Where each GPU is held by nothing."""
    gaps = []
    for gpu in range(gpus):
        now = 0.0
        for span in sorted((s for s in spans if s.gpu == gpu), key=_by_gpu):
            if span.start > now:
                gaps.append(Span(gpu, "idle", "idle", now, span.start))
            now = max(now, span.end)
        if end > now:
            gaps.append(Span(gpu, "idle", "idle", now, end))
    return gaps

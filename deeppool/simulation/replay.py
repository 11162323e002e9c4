"""A plan on a virtual clock: what each GPU does when, and what a background job could take.

Layers run forward and then backward, each on its GPUs; a layer's transfers come before it in forward and
after it in backward, its gradients are synchronised right after its backward (no overlap, as in DeepPool,
section 4.1). Between a fork and its join, branches that share no GPU run side by side, the others one
after another, and the join waits for all of them; backward the same from the join to the fork. The
iteration therefore takes exactly the plan's iteration time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from deeppool.graph.regions import Block, Knot, Series
from deeppool.planning.lanes import Gpus, lanes_of
from deeppool.planning.plan import LayerAssignment, Plan
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
    tree = plan.tree
    spans: list[Span] = []

    def run(layer: LayerAssignment, kind: SpanKind, seconds: float, now: float) -> float:
        if seconds > 0:
            spans.extend(Span(gpu, kind, layer.name, now, now + seconds) for gpu in layer.gpus)
        return now + seconds

    def forward(index: int, now: float) -> float:
        layer = plan.layers[index]
        return run(layer, "forward", layer.forward, run(layer, "reshard", layer.reshard / 2, now))

    def backward(index: int, now: float) -> float:
        layer = plan.layers[index]
        now = run(layer, "sync", layer.sync, run(layer, "backward", layer.backward, now))
        return run(layer, "reshard", layer.reshard / 2, now)

    middle = _walk(tree, plan.gpu_sets, forward, 0.0, 1)
    return spans, _walk(tree, plan.gpu_sets, backward, middle, -1)


def _walk(
    part: Series | Block | Knot | None, gpus: Gpus, run: Callable[[int, float], float], now: float, direction: int
) -> float:
    """Runs the layers of a part of the model from ``now`` on, forward (1) or backward (-1); when it has ended."""
    if isinstance(part, Knot):
        for layer in part.layers[::direction]:
            now = run(layer, now)
    elif isinstance(part, Block):
        ends = []
        for lane in lanes_of(part, gpus):
            end = now
            for branch in lane[::direction]:
                end = _walk(part.branches[branch], gpus, run, end, direction)
            ends.append(end)
        now = max(ends)
    elif part is not None:
        steps = [step for pair in zip(part.blocks, part.layers, strict=True) for step in pair]
        for step in [*steps, part.tail][::direction]:
            now = run(step, now) if isinstance(step, int) else _walk(step, gpus, run, now, direction)
    return now


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

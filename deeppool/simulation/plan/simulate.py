"""Simulation of a plan on a virtual clock: per-GPU activity, and the idle time left for a background job.

Layers start by the plan's schedule (``deeppool.planning.evaluate.schedule``), so the iteration takes exactly
the plan's iteration time. A GPU has one span at a time: of an all-reduce that overlaps the backward pass only the
intervals in which its GPU would otherwise wait are spans. They belong to the foreground, whose kernels run there. A
CPU core waits during part of a transfer; where a measured network gives that part, it counts as idle although it lies
within the transfer's span. What it computes of an all-reduce beside the backward pass lengthens the backward's span.

Under other conditions than planned (slow GPUs, stragglers, slow links) many iterations are drawn, and the one of median
length is shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from deeppool.base.arguments import typed
from deeppool.base.number_checks import positive_number, whole_number
from deeppool.base.timeline import Span, SpanKind, Timeline
from deeppool.cluster.cluster import MAXIMUM_GPUS
from deeppool.errors import InvalidValueError
from deeppool.planning.evaluate.memory import gpu_names
from deeppool.planning.evaluate.schedule import (
    IterationSchedule,
    LayerSeconds,
    exposed_syncs,
    group_identical_gpus,
    parameter_layers,
)
from deeppool.planning.plan import Plan
from deeppool.records.run_record import TimeSummary, summarise
from deeppool.simulation.device.idle_harvest import IdleHarvest
from deeppool.simulation.plan.conditions import Conditions
from deeppool.simulation.plan.fidelity import Fidelity
from deeppool.simulation.plan.stragglers import StragglingIterations, simulate_iterations
from deeppool.units import format_count, format_growth, format_rate, format_seconds

UPDATE = "update"
"""Name of the span of a GPU's update, as in a run's timeline."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """One simulated iteration of a plan."""

    KIND: ClassVar[str] = "simulation"

    model: str
    gpus: int
    iteration_time: float
    gpu_seconds: float
    """GPU-seconds held by the foreground."""
    idle_gpu_seconds: float
    """GPU-seconds left for a background; with ``gpu_seconds`` they add up to gpus x iteration_time."""
    background_samples: float | None
    """Samples that a background job trains per iteration if it uses all idle time without interference, on GPUs that
    have room for it."""
    timeline: Timeline
    plan_iteration_time: float | None = None
    """Planned iteration time; None: a record from before conditions."""
    conditions: Conditions | None = None
    """Simulated conditions; None: all as planned."""
    iteration_times: tuple[float, ...] = ()
    """Times of all drawn iterations, whose median is ``iteration_time``; empty without conditions."""
    fidelity: Fidelity | None = None
    """Errors against a live run of the plan, where one was given."""
    without_room: tuple[int, ...] = ()
    """GPUs on which the background job has no room beside the plan, and trains nothing."""

    def __post_init__(self) -> None:
        if not 1 <= self.timeline.gpus <= self.gpus <= MAXIMUM_GPUS or self.iteration_time <= 0:
            raise InvalidValueError(
                f"an iteration takes some time on 1 to {MAXIMUM_GPUS} GPUs, got {self.iteration_time:g} s on "
                f"{self.gpus} and a timeline of {self.timeline.gpus}"
            )

    @property
    def summary(self) -> TimeSummary:
        """Mean and percentiles of the iteration times."""
        return summarise(list(self.iteration_times) or [self.iteration_time])

    def __str__(self) -> str:
        share = self.idle_gpu_seconds / (self.gpus * self.iteration_time)
        text = (
            f"{self.model} on {format_count(self.gpus, 'GPU')}: {format_seconds(self.iteration_time)} an iteration, "
            f"{100 * share:.0f} % of GPU time idle"
        )
        if self.background_samples is not None:
            trained = format_rate(self.background_samples)
            text += f"; a background job would train {trained} samples in it (no interference modelled)"
            if self.without_room:
                text += f", none on {gpu_names(self.without_room)}, without room for it"
        if self.conditions is not None and self.plan_iteration_time:
            found = self.summary
            text += (
                f"; {self.conditions}: {'mean ' * (found.count > 1)}{format_seconds(found.mean)} "
                f"({format_growth(found.mean / self.plan_iteration_time - 1)} against the plan)"
            )
            if found.count > 1:
                text += f", p99 {format_seconds(found.p99)} of {found.count} iterations"
        return text if self.fidelity is None else f"{text}\n{self.fidelity}"


@typed
def simulate(
    plan: Plan,
    *,
    background_sample_time: float | None = None,
    background_memory: int | None = None,
    conditions: Conditions | None = None,
    iterations: int = 1000,
) -> Simulation:
    """Simulates one iteration of a plan.

    Args:
        plan: the plan.
        background_sample_time: seconds per sample of a background job on one GPU alone; it then
            fills every gap.
        background_memory: bytes that it needs; it fills no gap of a GPU that has no room for it beside the plan.
        conditions: deviations from the plan; many iterations are then drawn, and the one of median length is
            shown.
        iterations: number of iterations to draw, where conditions are random.

    Raises:
        InvalidValueError: no iterations, speeds of more GPUs than the plan has, or a sample that takes no time.
    """
    if background_sample_time is not None:
        background_sample_time = positive_number("background_sample_time", background_sample_time, "seconds per sample")
    times: tuple[float, ...] = ()
    if conditions is None:
        work, end = gpu_activities(plan)
    else:
        work, times = median_activities(plan, conditions, iterations)
        end = _median_iteration(times)[1]
    filled: dict[int, Sequence[Span]] = {}
    held = idle = used = 0.0
    full = set(range(plan.gpus)) if background_sample_time is None else {*plan.without_room(background_memory)}
    for one in work:
        whole, unused = _filled(one, end, "background"), _filled(one, end, "idle")
        free = whole.held - one.held
        held += len(one.gpus) * one.held
        idle += len(one.gpus) * free
        used += sum(free for gpu in one.gpus if gpu not in full)
        filled.update((gpu, (unused if gpu in full else whole).on(gpu)) for gpu in one.gpus)
    return Simulation(
        model=plan.model,
        gpus=plan.gpus,
        iteration_time=end,
        gpu_seconds=held,
        idle_gpu_seconds=idle,
        background_samples=None if background_sample_time is None else used / background_sample_time,
        timeline=Timeline(
            f"{plan.model}, {'planned' if conditions is None else conditions}",
            "predicted",
            plan.gpus,
            tuple(span for gpu in range(plan.gpus) for span in filled[gpu]),
        ),
        plan_iteration_time=plan.iteration_time,
        conditions=conditions,
        iteration_times=times,
        without_room=() if background_sample_time is None else tuple(sorted(full)),
    )


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """Spans of an iteration on a set of GPUs with identical activity."""

    gpus: tuple[int, ...]
    spans: tuple[Span, ...]
    """Spans on the first GPU, by start."""
    computing: Mapping[SpanKind, float] = field(default_factory=dict)
    """Fraction of a span in which a core computes, by kind, where it is below 1; in the rest it waits for data."""

    @property
    def held(self) -> float:
        """Seconds for which the foreground holds one of the GPUs."""
        return sum(self.computed(span) for span in self.spans)

    def harvest(self, end: float, waits: IdleHarvest) -> float:
        """Returns the seconds of background work done on one of the GPUs in its waits.

        Args:
            end: end of the iteration.
            waits: harvest per length of wait.
        """
        inside = sum(span.duration - self.computed(span) for span in self.spans)
        lengths = [until - since for since, until in _gaps(self.spans, end)]
        return waits.in_transfers * inside + sum(waits.at(length) * length for length in lengths)

    def computed(self, span: Span) -> float:
        """Returns the seconds of a span in which the GPU is busy."""
        return span.duration * self.computing.get(span.kind, 1.0)

    def on(self, gpu: int) -> tuple[Span, ...]:
        """Returns the spans on another of the GPUs."""
        return tuple(Span(gpu, span.kind, span.name, span.start, span.end) for span in self.spans)


def gpu_activities(plan: Plan) -> tuple[list[GpuActivity], float]:
    """Returns the activity of all GPUs, grouped where identical and including idle GPUs, and the iteration time."""
    layers, gpus, times = plan.layers, plan.gpu_sets, plan.schedule
    names = [layer.name for layer in layers]
    computing = _computing(plan)
    work = [
        GpuActivity(tuple(same), _spans(same[0], computed, names, times, layers), computing)
        for computed, same in group_identical_gpus(gpus).items()
    ]
    return [*work, *_without_work(plan)], times.iteration_time


def replay(plan: Plan) -> tuple[GpuActivity, ...]:
    """Returns the activity of all GPUs with idle spans, one entry per group of identical GPUs."""
    work, end = gpu_activities(plan)
    return tuple(sorted((_filled(one, end, "idle") for one in work), key=lambda one: one.gpus[0]))


def median_activities(
    plan: Plan, conditions: Conditions, iterations: int
) -> tuple[list[GpuActivity], tuple[float, ...]]:
    """Returns the activity of all GPUs in the iteration of median length, and the times of all iterations.

    Raises:
        InvalidValueError: no iterations, or speeds of more GPUs than the plan has.
    """
    found = _varied(plan, conditions, iterations)
    times = tuple(found.iteration_times.tolist())
    return _work_in(plan, found, _median_iteration(times)[0]), times


def mean_held(plan: Plan, conditions: Conditions, iterations: int) -> tuple[NDArray[np.float64], tuple[float, ...]]:
    """Returns the mean seconds for which the foreground holds each GPU, and the times of all iterations.

    Raises:
        InvalidValueError: no iterations, or speeds of more GPUs than the plan has.
    """
    found = _varied(plan, conditions, iterations)
    return found.mean_held(plan, _computing(plan)), tuple(found.iteration_times.tolist())


def sampled_activities(plan: Plan, conditions: Conditions, iterations: int) -> list[tuple[list[GpuActivity], float]]:
    """Returns the activity of all GPUs and the iteration time, for every drawn iteration.

    Raises:
        InvalidValueError: no iterations, or speeds of more GPUs than the plan has.
    """
    found = _varied(plan, conditions, iterations)
    return [(_work_in(plan, found, index), time) for index, time in enumerate(found.iteration_times.tolist())]


def _varied(plan: Plan, conditions: Conditions, iterations: int) -> StragglingIterations:
    whole_number("iterations", iterations)
    conditions.check_gpus(plan.gpus, "the plan")
    return simulate_iterations(plan, conditions, iterations if conditions.random else 1)


def _work_in(plan: Plan, found: StragglingIterations, iteration: int) -> list[GpuActivity]:
    names = [layer.name for layer in plan.layers]
    work = []
    for computed, same in group_identical_gpus(plan.gpu_sets).items():
        by_speed: dict[float, list[int]] = {}
        for gpu in same:
            by_speed.setdefault(float(found.slowness[iteration, gpu]), []).append(gpu)
        for gpus in by_speed.values():
            own, seconds = found.schedule_of(plan, iteration, gpus[0])
            work.append(GpuActivity(tuple(gpus), _spans(gpus[0], computed, names, own, seconds), _computing(plan)))
    return [*work, *_without_work(plan)]


def _median_iteration(times: Sequence[float]) -> tuple[int, float]:
    """Returns the index and length of the iteration of median length, the shorter of two."""
    index = int(np.argsort(times, kind="stable")[(len(times) - 1) // 2])
    return index, times[index]


def _computing(plan: Plan) -> dict[SpanKind, float]:
    """Returns the computing fractions of transfers, where the network was measured between cores."""
    network = plan.cluster.measured
    if network is None:
        return {}
    return {"reshard": network.computing("transfer"), "sync": network.computing("all-reduce")}


def _without_work(plan: Plan) -> list[GpuActivity]:
    used = {gpu for gpus in set(plan.gpu_sets) for gpu in gpus}
    idle = tuple(gpu for gpu in range(plan.gpus) if gpu not in used)
    return [GpuActivity(idle, ())] if idle else []


def _spans(
    gpu: int, computed: Sequence[int], names: Sequence[str], times: IterationSchedule, layers: Sequence[LayerSeconds]
) -> tuple[Span, ...]:
    """Returns the spans of the layers that a GPU computes, and of its update."""
    spans: list[Span] = []

    def run(layer: int, kind: SpanKind, start: float, end: float) -> None:
        if end > start:
            spans.append(Span(gpu, kind, names[layer], start, end))

    for index in computed:
        layer, inputs = layers[index], times.inputs[index]
        arrived = inputs + layer.reshard / 2
        run(index, "reshard", inputs, arrived)
        run(index, "forward", arrived, arrived + layer.forward)
        run(index, "backward", times.backward[index], times.computed[index])
        run(index, "reshard", times.gradients[index], times.sent[index])
    spans.extend(Span(gpu, "sync", names[x.layer], x.start, x.end) for x in exposed_syncs(times, layers, computed))
    update = sum(layers[index].update for index in parameter_layers(computed, layers))
    if update > 0:
        spans.append(Span(gpu, "update", UPDATE, times.update, times.update + update))
    return tuple(sorted(spans, key=attrgetter("start")))


def _filled(work: GpuActivity, end: float, kind: SpanKind) -> GpuActivity:
    """Fills the gaps until the end of the iteration with spans of a kind."""
    gaps = (Span(work.gpus[0], kind, kind, *gap) for gap in _gaps(work.spans, end))
    return GpuActivity(work.gpus, tuple(sorted([*work.spans, *gaps], key=attrgetter("start"))))


def _gaps(spans: Sequence[Span], end: float) -> Iterator[tuple[float, float]]:
    """Yields the start and end of each gap between spans sorted by start."""
    now = 0.0
    for span in spans:
        if span.start > now:
            yield now, span.start
        now = max(now, span.end)
    if end > now:
        yield now, end

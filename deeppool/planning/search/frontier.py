"""Every efficient plan of a model: the frontier of iteration time against GPU-seconds.

The same recursion as the exact search (see ``search``), over Pareto fronts instead of least times. A
global amplification limit is then a point of the frontier: the fastest plan whose GPU-seconds are at most
the limit times the single-GPU iteration time.

A chain's frontier is exact (see ``pareto``). With branches, side by side or one after another, each part of the
model gets the labels of its efficient plans (see ``frontier_dp``). Where they are few enough the frontier is
exact too. Else seconds are rounded, labels that rounding makes equal are left out, and every label that is kept
has the least seconds of those it represents: the frontier states how much faster, at most, a plan with no more
GPU-seconds could be. For regions that are not series-parallel, and blocks whose partitions are not all tried, a bound
that holds for all plans comes from prices for GPU-seconds (see ``lagrangian_bound``).
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from deeppool.cluster.cluster import Cluster
from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.communication import SAME_START
from deeppool.costs.table import CostTable, Floats
from deeppool.errors import PlanError
from deeppool.graph.series_parallel import INPUT, Series, decompose, parts_of
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search.frontier_dp import LabelSolver
from deeppool.planning.search.label_sums import efficient_sums, plan_of
from deeppool.planning.search.labels import LabelSet, concatenate
from deeppool.planning.search.lagrangian_bound import LagrangianBound
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.optimality import certificate
from deeppool.planning.search.parallel_block import BlockSolver
from deeppool.planning.search.pareto import pareto_indices
from deeppool.planning.search.price_sweep import PriceSweep, search_overlapping_within
from deeppool.planning.search.search import SearchResult, search
from deeppool.planning.search.shortest_path import Choice, ExhaustedError, PartialPlan
from deeppool.units import format_bytes, format_seconds

CHAIN_POINTS = 20_000
"""Most points of the frontier of a chain, which is exact below that."""
ATTEMPTS = ((0.0, 300_000), (0.004, 8_000_000), (0.05, math.inf))
"""Ratios by which seconds are rounded, and how many labels may be tried with each before the next one."""
PRICES = 40
"""Number of prices of a GPU-second for which the bound is computed."""


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One efficient plan of a frontier."""

    iteration_time: float
    gpu_seconds: float
    amplification: float
    """gpu_seconds / single-GPU iteration time."""
    gpu_counts: tuple[int, ...]
    """GPU count of each layer."""
    first_gpus: tuple[int, ...]
    """First GPU of each layer; not 0 where branches run side by side."""
    memory: int | None = None
    """Bytes on the GPU that holds most; None if the profile lacks activation sizes."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """All plans that no other one beats in both iteration time and GPU-seconds, fastest first."""

    KIND: ClassVar[str] = "frontier"

    model: str
    cluster: Cluster
    gpus: int
    global_batch: int
    layers: tuple[str, ...]
    single_gpu_iteration_time: float
    data_parallel_iteration_time: float
    points: tuple[FrontierPoint, ...]
    optimality: str
    """``exact``, or ``bound x``: an efficient plan may be up to x times faster than the point with its GPU-seconds."""
    search_time: float
    caveats: tuple[str, ...] = ()
    """Uncertainties of the layer times, a sentence each; see :mod:`deeppool.profiling.iteration_check`."""
    gpu_counts: tuple[int, ...] = ()
    """Searched counts, ascending."""
    data_parallel_iteration_times: tuple[float, ...] = ()
    """Seconds per GPU count with every layer on that many GPUs, as in a static partition of the cluster."""

    @property
    def data_parallel_gpu_seconds(self) -> tuple[float, ...]:
        """GPU-seconds of data parallelism per GPU count: all GPUs are held all the time."""
        times = self.data_parallel_iteration_times
        return tuple(count * seconds for count, seconds in zip(self.gpu_counts, times, strict=True))

    @property
    def fitting(self) -> tuple[FrontierPoint, ...]:
        """The points whose plans fit into the GPUs' memory; all points if either is unknown."""
        capacity = math.inf if self.cluster.memory is None else self.cluster.memory
        return tuple(point for point in self.points if (point.memory or 0) <= capacity)

    def within(self, amplification_limit: float | None) -> FrontierPoint:
        """Returns the fastest plan under a limit on the iteration's amplification, fitting into memory or not.

        Raises:
            PlanError: every plan spends more.
        """
        if amplification_limit is None:
            return self.points[0]
        least = self.points[-1].amplification
        if not amplification_limit * (1 + TOLERANCE) >= least:
            raise PlanError(
                f"no plan of {self.model} within amplification {amplification_limit:g}: the least is {least:.4g}, of "
                f"the plan that takes {format_seconds(self.points[-1].iteration_time)} (use a larger limit)"
            )
        # Amplification descends along the points.
        position = bisect_left(
            self.points, -amplification_limit * (1 + TOLERANCE), key=lambda point: -point.amplification
        )
        return self.points[position]

    def __str__(self) -> str:
        first, last = self.points[0], self.points[-1]
        capacity = self.cluster.memory or 0
        too_large = len(self.points) - len(self.fitting)
        text = (
            f"{self.model}, batch {self.global_batch} on {self.gpus} GPUs ({self.cluster.name}): "
            f"{len(self.points)} efficient plans, from {format_seconds(first.iteration_time)} at amplification "
            f"{first.amplification:.2f} to {format_seconds(last.iteration_time)} at {last.amplification:.2f}; "
            f"data parallel {format_seconds(self.data_parallel_iteration_time)}; {self.optimality}"
        )
        if too_large:
            text += f"; {too_large} need more than the {format_bytes(capacity)} of a GPU"
        return "; caution: ".join([text, *self.caveats])


@dataclass(frozen=True, slots=True)
class EfficientPlans:
    """The frontier of a cost table, whose points can be traced to plans one by one."""

    time: Floats
    """Seconds of each point, ascending."""
    work: Floats
    """GPU-seconds of each point, descending."""
    optimality: str
    trace: Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]]
    """Returns for a point, per layer, the index of its GPU count and its first GPU."""
    beyond: tuple[float, float] | None = None
    """Least seconds and GPU-seconds of plans with fewer GPU-seconds than the last point; None if there are none."""

    def within(self, work: float) -> int:
        """Returns the fastest point with at most ``work`` GPU-seconds."""
        position = bisect_left(self.work, -work * (1 + TOLERANCE), key=lambda value: -value)
        return min(position, len(self.work) - 1)


def efficient_plans(costs: CostTable) -> EfficientPlans:
    """Returns the frontier of a cost table."""
    if costs.overlap:
        return _overlapping(costs)
    tree = decompose([layer.predecessors for layer in costs.graph.layers])
    parts = list(parts_of(tree))
    return _chain(costs, tree) if len(parts) == 1 else _with_branches(costs, tree)


def _overlapping(costs: CostTable) -> EfficientPlans:
    sweep = PriceSweep(costs)
    points = sweep.efficient()
    time, work = np.array([point.time for point in points]), np.array([point.work for point in points])
    factor = float(sweep.factors(points).max())
    return EfficientPlans(time, work, certificate(factor), lambda point: points[point].plan, sweep.beyond(points))


def _chain(costs: CostTable, tree: Series) -> EfficientPlans:
    prices = LimitedCosts(costs, None, work_price=1 / costs.gpu_counts[-1])
    steps = BlockSolver(prices).steps(tree)

    def labels(position: int, before: int, after: int) -> list[PartialPlan]:
        return [steps[position][0].settle(0, before, after)]

    front = efficient_sums(steps, prices, labels, CHAIN_POINTS)
    factor = front.factor if front.factor == 1 else min(front.factor, _distance(costs, tree, front.time, front.work))
    return EfficientPlans(front.time, front.work, certificate(factor), lambda point: plan_of(front, point))


def _with_branches(costs: CostTable, tree: Series) -> EfficientPlans:
    labels, complete = _labels(costs, tree)
    # The fastest plan is the search's own, even where labels are rounded.
    fastest = search(costs, None)
    labels = concatenate([labels, _label_of(Placement(costs, fastest.choices, fastest.starts), fastest.iteration_time)])
    kept = pareto_indices(labels.time, labels.work)
    time, work = labels.time[kept], labels.work[kept]

    def trace(point: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        choices = sorted(labels.trace(int(kept[point])))
        return tuple(choice.option for choice in choices), tuple(choice.start for choice in choices)

    factor = _label_gap(labels) if complete else _distance(costs, tree, time, work)
    return EfficientPlans(time, work, certificate(factor), trace)


def _labels(costs: CostTable, tree: Series) -> tuple[LabelSet, bool]:
    """Returns labels of plans, and whether every plan has one, or one that represents it."""
    limited = LimitedCosts(costs, None)
    for ratio, most in ATTEMPTS:
        with suppress(ExhaustedError):
            solver = LabelSolver(limited, ratio, most)
            return _whole(solver, tree), solver.complete
    raise AssertionError("the last attempt has no end")


def _label_of(placement: Placement, time: float) -> LabelSet:
    """Converts a plan to a label set."""
    placed = zip(placement.options, placement.starts, strict=True)
    choices = [Choice(layer, *place) for layer, place in enumerate(placed)]
    nothing, seconds = np.zeros(1, dtype=np.int64), np.array([time])
    work = np.array([placement.gpu_seconds])
    return LabelSet(nothing, nothing, seconds, np.zeros(1), np.zeros(1), work, seconds, lambda _: iter(choices))


def _label_gap(labels: LabelSet) -> float:
    """Returns the factor by which a plan without a label may be faster than the fastest label with no more work."""
    order = np.lexsort((labels.time, labels.work))
    fastest = np.minimum.accumulate(labels.time[order])
    return float((fastest / labels.lower[order]).max())


def _whole(fronts: LabelSolver, tree: Series) -> LabelSet:
    """Returns the labels of all layers of a model."""
    slot = fronts.gpus, SAME_START
    labels, fork = None, INPUT
    for layer, block in zip(tree.layers, tree.blocks, strict=True):
        step = fronts.step(block, fork, layer, slot)
        labels = step if labels is None else fronts.series(labels, step)
        fork = layer
    assert labels is not None
    return fronts.ended(labels)


def search_within(costs: CostTable, limit: float | None) -> SearchResult:
    """Returns the least iteration time whose GPU-seconds are at most ``limit`` times the single-GPU iteration time."""
    if costs.overlap:
        return search_overlapping_within(costs, limit)
    efficient = efficient_plans(costs)
    point = efficient.within(math.inf if limit is None else limit * costs.single_gpu_time)
    options, starts = efficient.trace(point)
    return SearchResult(options, starts, float(efficient.time[point]), efficient.optimality)


def _distance(costs: CostTable, tree: Series, time: Floats, work: Floats) -> float:
    """Returns the factor by which a plan may be faster than the point with its GPU-seconds, at most.

    With a price p of a GPU-second no plan is better than ``least(p)``, so one with at most w GPU-seconds takes
    ``least(p) - p w`` at least. The prices lie between the least and the greatest slope of the front.
    """
    # Between two points the first one is the best there is, up to the GPU-seconds of the next faster one.
    before = np.concatenate([[math.inf], work[:-1]])
    bounds = np.full(len(time), LagrangianBound(costs, 0.0).least(tree))
    slopes = np.diff(time) / -np.diff(work)
    for price in np.geomspace(slopes.min(), slopes.max(), PRICES) if len(slopes) else ():
        bounds = np.maximum(bounds, LagrangianBound(costs, float(price)).least(tree) - price * before)
    return float((time / bounds).max())

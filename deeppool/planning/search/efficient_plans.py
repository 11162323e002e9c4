"""Every efficient plan of a model: the plans that no other one beats in iteration time and GPU-seconds.

One search serves both models (see ``relaxed_frontier``). In the paper's model the sum of a plan's steps is its
iteration time. Where all-reduces overlap the backward pass it is a lower bound (see ``overlap``); the plans are then
timed with their real buckets. The largest ratio of a plan's time to what bounds all plans with fewer GPU-seconds than
the plan before it is a factor in time alone. Next to the fewest
GPU-seconds the iteration time may double for 0.01 % of them, so a second factor is one of both numbers.

A limit on the iteration is a query: the fastest plan whose GPU-seconds are at most the limit times the single-GPU
iteration time, with the bound of all such plans.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import decompose
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search.hill_climbing import improve
from deeppool.planning.search.label_sums import spread
from deeppool.planning.search.labels import Plans
from deeppool.planning.search.limited_costs import ROUNDING
from deeppool.planning.search.optimality import certificate, optimality_factor
from deeppool.planning.search.overlap import PROVED, search_overlapping
from deeppool.planning.search.pareto import efficient_rows
from deeppool.planning.search.relaxed_frontier import RelaxedFrontier, RelaxedSearch
from deeppool.planning.search.search import SearchResult

SUMS = 150
"""Plans to time with their buckets."""

Point = tuple[float, float, Callable[[], Plans]]
"""Seconds and GPU-seconds of a plan, and how to find its layers' GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class EfficientPlans:
    """The plans of a cost table, of which no one beats another in both numbers, with bounds of all plans."""

    time: Floats
    """Seconds of each point, ascending."""
    work: Floats
    """GPU-seconds of each point, descending."""
    points: Sequence[Point]
    fastest: float
    """Seconds that no plan can beat."""
    relaxed: RelaxedFrontier

    def trace(self, point: int) -> Plans:
        """Returns, per layer, the index of its GPU count and its first GPU."""
        return self.points[point][2]()

    def within(self, work: float) -> int:
        """Returns the fastest point with at most ``work`` GPU-seconds."""
        position = int(np.searchsorted(-self.work, -work * (1 + TOLERANCE)))
        return min(position, len(self.work) - 1)

    def bound(self, work: float) -> float:
        """Returns seconds that no plan with at most ``work`` GPU-seconds can beat; infinite where none has so few."""
        row = int(np.searchsorted(-self.relaxed.work, -work * (1 + ROUNDING)))
        return max(float(self.relaxed.time[row]), self.fastest) if row < len(self.relaxed.time) else math.inf

    def corners(self) -> tuple[Floats, Floats]:
        """Returns seconds and GPU-seconds of which each plan takes no less than one pair."""
        return np.maximum(self.relaxed.time, self.fastest), self.relaxed.work

    def least_work(self, seconds: float) -> float:
        """Returns GPU-seconds that no plan within so many seconds falls below."""
        rows = int(np.searchsorted(self.relaxed.time, seconds * (1 + ROUNDING), side="right"))
        return float(self.relaxed.work[rows - 1]) if rows else math.inf

    @property
    def optimality(self) -> str:
        """Claim for each point: that no plan with fewer GPU-seconds than the point before is so much faster."""
        before = [math.inf, *(self.work[:-1] * (1 - TOLERANCE)).tolist()]
        factors = [time / self.bound(work) for time, work in zip(self.time.tolist(), before, strict=True)]
        return certificate(max(1.0, *factors))

    @property
    def pareto_factor(self) -> float:
        """Factor within which every plan has a point, in seconds and in GPU-seconds.

        An approximate Pareto set in the sense of Papadimitriou and Yannakakis (2000), with this number as 1 + epsilon.
        """
        times, works = self.corners()
        nearest = [
            float(np.maximum(self.time / time, self.work / work).min()) for time, work in zip(times, works, strict=True)
        ]
        return max(1.0, *nearest)


def efficient_plans(costs: CostTable) -> EfficientPlans:
    """Returns the efficient plans of a cost table, of those found, with bounds of all plans."""
    tree = decompose([layer.predecessors for layer in costs.graph.layers])
    fastest = search_overlapping(costs, None)
    relaxed = RelaxedSearch(costs, tree).frontier()
    known = [(fastest.choices, fastest.starts), ((0,) * len(costs.graph.layers),) * 2]
    points = [_timed(costs, plan) for plan in known]
    points += _timed_sums(costs, relaxed) if costs.overlap else _sums(relaxed)
    time, work = (np.array([point[number] for point in points]) for number in range(2))
    # Sums of the same seconds in another order differ in their last digits: no plan is more efficient for that.
    kept = efficient_rows(None, _rounded(time), _rounded(work))
    bound = fastest.iteration_time / optimality_factor(fastest.optimality)
    return EfficientPlans(time[kept], work[kept], [points[index] for index in kept.tolist()], bound, relaxed)


def search_within(costs: CostTable, limit: float | None) -> SearchResult:
    """Returns the fastest plan found whose GPU-seconds are at most ``limit`` times the single-GPU iteration time."""
    if limit is None:
        return search_overlapping(costs, None)
    efficient, budget = efficient_plans(costs), limit * costs.single_gpu_time
    allowed = budget * (1 + TOLERANCE)
    best, bound = Placement(costs, *efficient.trace(efficient.within(budget))), efficient.bound(allowed)
    if best.iteration_time > bound * PROVED and best.gpu_seconds <= allowed:
        best = improve([best], lambda plan, _: plan.gpu_seconds <= allowed, bound)
    claim = certificate(max(1.0, best.iteration_time / bound))
    return SearchResult(best.options, best.starts, best.iteration_time, claim)


def _rounded(values: Floats) -> Floats:
    return np.array([float(f"{value:.12g}") for value in values.tolist()])


def _timed(costs: CostTable, plan: Plans) -> Point:
    placement = Placement(costs, *plan)
    return placement.iteration_time, placement.gpu_seconds, lambda: plan


def _sums(found: RelaxedFrontier) -> Iterator[Point]:
    for index, (time, work) in enumerate(
        zip(found.sums.seconds(found.labels).tolist(), found.sums.work.tolist(), strict=True)
    ):
        yield time, work, partial(found.plan, index)


def _timed_sums(costs: CostTable, found: RelaxedFrontier) -> Iterator[Point]:
    rows = spread(found.sums.time, SUMS)
    return (_timed(costs, found.plan(row)) for row in rows.tolist())

"""Efficient plans whose all-reduces overlap the backward pass, by a sweep over prices of a GPU-second.

The search finds the plan of least F + (1 - share) B + share S + price x GPU-seconds, and the least value v that any
plan can have (see ``overlap`` for the sum and its share of the all-reduces). So a plan with at most w GPU-seconds
takes at least

    v(share, price) - price x w.

Where the ways through all blocks are few, all of them are labels: the least sums of F + (1 - share) B + share S with so
many GPU-seconds are then the bound.

Each plan that a search finds is a point, timed with its real buckets. So are the best sums of the labels that the
searches at one share evaluated (see ``label_sums``): they lie between the plans found at two prices. The largest ratio
of a point's time to its bound is the factor that the frontier states; prices are added where that ratio is largest.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from deeppool.base import cancellation
from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import NonSeriesParallel, decompose, parts_of
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search.label_sums import Plans, efficient_sums, plan_of
from deeppool.planning.search.limited_costs import ROUNDING, LimitedCosts
from deeppool.planning.search.optimality import certificate, optimality_factor
from deeppool.planning.search.overlap import BOUND_SHARES, least_update, relaxed_costs, search_overlapping
from deeppool.planning.search.parallel_block import BatchedStep, BlockSolver
from deeppool.planning.search.pareto import Front, pareto_indices
from deeppool.planning.search.search import SearchResult
from deeppool.planning.search.shortest_path import Budget, ExhaustedError, PartialPlan, Step

PRICES = 16
"""Most prices to try at each share."""
GOOD_FACTOR = 1.01
"""Factor at which no more prices are tried."""
SUMS = 150
"""Sums of labels that become points, at each share."""
MOST_SUMS = 20_000
"""Most sums of labels at any layer, where all labels are known."""
MOST_PAIRS = 5_000
"""Pairs of ways to try for all labels of a model."""


@dataclass(frozen=True, slots=True)
class Point:
    """A plan, as it runs."""

    time: float
    work: float
    """GPU-seconds."""
    plan: Plans


@dataclass(frozen=True, slots=True)
class Bound:
    """Least seconds + price x GPU-seconds of all plans."""

    price: float
    least: float


@dataclass(slots=True)
class SharedSearches:
    """What the searches at one share of the all-reduces found."""

    share: float
    labels: list[dict[tuple[int, int], dict[tuple[float, float], PartialPlan]]]
    """Per step and ends, ways that the searches evaluated: by seconds and GPU-seconds."""
    points: dict[float, Point] = field(default_factory=dict)
    """Plan found at each price."""


class PriceSweep:
    """The searches of one cost table."""

    def __init__(self, costs: CostTable) -> None:
        """Searches for the fastest plan, and for that of the fewest GPU-seconds."""
        self.costs = costs
        self.tree = decompose([layer.predecessors for layer in costs.graph.layers])
        self.points: dict[Plans, Point] = {}
        self.bounds: list[Bound] = []
        fastest = search_overlapping(costs, None)
        first = self._point((fastest.choices, fastest.starts))
        self.bounds.append(Bound(0.0, first.time / optimality_factor(fastest.optimality)))
        self._point(((0,) * len(costs.graph.layers),) * 2)
        bare = BlockSolver(LimitedCosts(costs, None, time_price=0.0, work_price=1.0), proving=False).whole(self.tree)
        self._point(placed(bare))
        self.least_work = bare.lower
        """GPU-seconds that no plan falls below."""
        self.stairs: list[tuple[Floats, Floats]] = []
        """Least seconds, and the GPU-seconds that take as many, both as arrays."""
        shares = self._shares()
        if not self._sum_all(shares):
            self._sweep(shares)

    def efficient(self) -> list[Point]:
        """Returns the plans that no other one beats in time and GPU-seconds, the fastest first."""
        points = list(self.points.values())
        kept = pareto_indices(np.array([point.time for point in points]), np.array([point.work for point in points]))
        return [points[index] for index in kept.tolist()]

    def bound(self, work: float) -> float:
        """Returns seconds that no plan with at most ``work`` GPU-seconds can beat."""
        least = max(bound.least - (bound.price * work if bound.price else 0.0) for bound in self.bounds)
        for time, spent in self.stairs:
            within = int(np.searchsorted(-spent, -work * (1 + ROUNDING)))
            least = max(least, float(time[within]) if within < len(time) else 0.0)
        return least

    def beyond(self, points: list[Point]) -> tuple[float, float] | None:
        """Returns the least seconds and GPU-seconds of plans with fewer GPU-seconds than the last point, if any."""
        work = points[-1].work * (1 - TOLERANCE)
        return (self.bound(work), self.least_work) if self.least_work < work else None

    def factors(self, points: list[Point]) -> Floats:
        """Returns, per efficient plan, how much faster one may be with fewer GPU-seconds than the plan before it."""
        before = [math.inf, *(point.work * (1 - TOLERANCE) for point in points[:-1])]
        return np.array([point.time / self.bound(work) for point, work in zip(points, before, strict=True)])

    def _sum_all(self, shares: list[float]) -> bool:
        """Sums all labels, where these are few; returns whether they are."""
        if any(isinstance(part, NonSeriesParallel) for part in parts_of(self.tree)):
            return False
        for share in shares:
            solver = BlockSolver(relaxed_costs(self.costs, self.tree, None, share, 1.0, updates=False))
            solver.budget = Budget(MOST_PAIRS)
            steps = solver.steps(self.tree)
            try:
                front = efficient_sums(steps, solver.prices, partial(_every_way, steps), MOST_SUMS)
            except ExhaustedError:
                return False
            if front.factor > 1 or not solver.complete:
                return False
            self.stairs.append((front.time + least_update(self.costs, self.tree), front.work))
            self._add(front)
        return True

    def _add(self, front: Front) -> None:
        """Times the plans of a front, at most SUMS of them."""
        for index in np.unique(np.linspace(0, len(front) - 1, SUMS).astype(int)).tolist():
            self._point(plan_of(front, index))

    def _sweep(self, shares_to_try: list[float]) -> None:
        """Searches at prices where the factor is worst, at each share of the all-reduces."""
        shares = [SharedSearches(share, [{} for _ in self.tree.layers]) for share in shares_to_try]
        for _ in range(PRICES):
            points = self.efficient()
            factors = self.factors(points)
            price = self._next_price(points, factors)
            if factors.max() <= GOOD_FACTOR or price is None:
                break
            for searches in shares:
                self._search(searches, price)
        for searches in shares:
            if searches.points:
                self._add_sums(searches)

    def _shares(self) -> list[float]:
        """Returns no share, and the one whose bound of the fastest plan is best where that is a better one."""
        least = {share: self._solver(share, 0.0).whole(self.tree).lower for share in (0.0, *BOUND_SHARES)}
        best = max(least, key=lambda share: least[share])
        return [0.0] if least[best] <= least[0.0] * (1 + GOOD_FACTOR / 100) else [0.0, best]

    def _solver(self, share: float, price: float) -> BlockSolver:
        return BlockSolver(relaxed_costs(self.costs, self.tree, None, share, price), proving=False)

    def _search(self, searches: SharedSearches, price: float) -> None:
        """Searches at one price, and keeps the plan, its bound, and the labels on its way."""
        cancellation.check()
        solver = self._solver(searches.share, price)
        found = solver.whole(self.tree)
        plan = placed(found)
        self.bounds.append(Bound(price, found.lower))
        searches.points[price] = self._point(plan)
        fork = 0
        for layer, known, (step, layers) in zip(
            self.tree.layers, searches.labels, solver.steps(self.tree), strict=True
        ):
            if isinstance(step, BatchedStep):
                settle_near(step, fork, plan[0][layer])
                for ends, label in step.settled(0).items():
                    keep(known.setdefault(ends, {}), label, layers, price)
            fork = plan[0][layer]

    def _point(self, plan: Plans) -> Point:
        if plan not in self.points:
            placement = Placement(self.costs, *plan)
            self.points[plan] = Point(placement.iteration_time, placement.gpu_seconds, plan)
        return self.points[plan]

    def _next_price(self, points: list[Point], factors: Floats) -> float | None:
        """Returns the price between those tried that improves the worst bound most, None where there is none."""
        tried = sorted({bound.price for bound in self.bounds})
        for index in np.argsort(-factors).tolist():
            if index == 0:
                continue
            work = points[index - 1].work
            best = max(self.bounds, key=lambda bound: bound.least - bound.price * work).price
            # The price at which both plans of a jump would be equally good.
            here, there = points[index - 1], points[index]
            slope = float((there.time - here.time) / (here.work - there.work))
            around = [price for price in tried if abs(math.log((price + 1e-30) / (slope + 1e-30))) < TOLERANCE + 1e-3]
            if slope > 0 and not around:
                return slope
            higher = [price for price in tried if price > best]
            if higher and best and higher[0] / best > 1.1:
                return math.sqrt(best * higher[0])
        return None

    def _add_sums(self, searches: SharedSearches) -> None:
        """Times the best sums of labels."""
        prices = relaxed_costs(self.costs, self.tree, None, searches.share, 1.0, updates=False)
        steps = BlockSolver(prices, side_by_side=False).steps(self.tree)

        def labels(position: int, before: int, after: int) -> Iterator[PartialPlan]:
            step, _ = steps[position]
            if not isinstance(step, BatchedStep):
                yield step.settle(0, before, after)
            yield from searches.labels[position].get((before, after), {}).values()

        self._add(efficient_sums(steps, prices, labels, SUMS))


def _every_way(steps: Sequence[tuple[Step, int]], position: int, before: int, after: int) -> list[PartialPlan]:
    return steps[position][0].front(0, before, after, math.inf)


def placed(found: PartialPlan) -> Plans:
    """Returns the options and first GPUs of a plan of all layers."""
    choices = sorted(found.choices())
    return tuple(choice.option for choice in choices), tuple(choice.start for choice in choices)


def settle_near(step: Step, before: int, after: int) -> None:
    """Evaluates the ways to neighbouring GPU counts too, where a plan may go over to another one."""
    rows, columns = step.lower.shape[1:]
    for there, here in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        if 0 <= before + there < rows and 0 <= after + here < columns:
            step.settle(0, before + there, after + here)


def keep(known: dict[tuple[float, float], PartialPlan], label: PartialPlan, layers: int, price: float) -> None:
    """Keeps a label as one at the price 1 of a GPU-second."""
    if label.time < math.inf:
        work, time = label.added / price, label.time - label.added
        known.setdefault((time, work), PartialPlan(time + work, label.forward, 0.0, ((label, layers, 0),), work))


def search_overlapping_within(costs: CostTable, limit: float | None) -> SearchResult:
    """Returns the fastest plan found whose GPU-seconds are at most ``limit`` times the single-GPU iteration time."""
    if limit is None:
        return search_overlapping(costs, None)
    budget = limit * costs.single_gpu_time * (1 + TOLERANCE)
    sweep = PriceSweep(costs)
    best = min((point for point in sweep.points.values() if point.work <= budget), key=lambda point: point.time)
    factor = best.time / sweep.bound(budget)
    return SearchResult(*best.plan, best.time, certificate(max(1.0, factor) if factor > 1 + ROUNDING else 1.0))

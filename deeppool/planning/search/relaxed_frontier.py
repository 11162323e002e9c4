"""Efficient sums of labels of a model: lower bounds of all plans, and plans near to them.

The sum of a plan's steps is its seconds in the paper's model, and no more than its seconds where all-reduces overlap
the backward pass (see ``overlap``). Where the ways through all blocks are few they are the labels: the efficient sums
are then exact. Else labels come from searches at several prices of a GPU-second (see ``step_labels``). Where they would
be too many they are further apart, and so their sums are looser; bounds of the whole model at more prices, without a
search of their own (see ``price_bounds``), make up for that, but for what lies between two corners. The blocks of
some efficient sums are then evaluated, at the GPU counts and prices of the sum, and so become labels with a plan each:
their sums are the plans.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import Series
from deeppool.planning.search.label_sums import LabelSums, StepLabels, efficient_sums, spread
from deeppool.planning.search.labels import Parts, Plans, plan_of
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.overlap import least_update, relaxed_costs
from deeppool.planning.search.parallel_block import BlockSolver
from deeppool.planning.search.pareto import efficient_rows
from deeppool.planning.search.price_bounds import ROUNDING, PriceGrid, larger, least_path_lengths, path_bounds
from deeppool.planning.search.shortest_path import Budget, Edge, ExhaustedError, PathStep
from deeppool.planning.search.step_labels import layer_heights, vertex_labels, with_points_between
from deeppool.planning.search.sum_bounds import SumBounds

LEAST_PRICE, MOST_PRICE = 0.02, 2000.0
"""Prices of the searches: from the first one, in seconds per second of all GPUs, to the second, per GPU-second."""
RATIO = 2.0
"""Ratio of a price to the one before it."""
PRICED = 1
"""Number of the first price above 0."""
MOST_PAIRS = 5_000
"""Pairs of ways to try for all labels of a model."""
MOST_EXACT = 20_000
"""Most sums that end on one GPU count, where all ways are labels."""
GAP = 0.004
"""Gap between two labels of a block (see ``step_labels``)."""
MOST_LABELS = 8_000
"""Most labels of all steps that are bounds, about; more have wider gaps."""
MOST_BOUNDS = 1000
"""Most sums that end on one GPU count, where labels are bounds."""
MOST_PLANS = 300
"""The same, where labels are ways that searches found."""
MOST_ROUGH = 60
"""The same, where sums of vertices alone are to rule out labels."""
BETWEEN = 16
"""Intervals of prices between two that are searched."""
EVALUATED = 100
"""Sums of bounds whose blocks are evaluated."""

Steps = Sequence[tuple[PathStep, int]]
"""Steps of a model, each with the offset to add to its layers."""


@dataclass(frozen=True, slots=True, eq=False)
class RelaxedFrontier:
    """Bounds of all plans, and plans, whose seconds and GPU-seconds are sums of those of their steps."""

    time: Floats
    """Seconds that no plan with fewer GPU-seconds than the bound before can beat; ascending."""
    work: Floats
    """GPU-seconds, descending; no plan falls below the last."""
    sums: LabelSums
    """Sums of labels with a plan each."""
    labels: Sequence[StepLabels]
    offsets: Sequence[int]
    """Per step the offset to add to the layers of its plans."""

    def plan(self, index: int) -> Plans:
        """Returns a plan."""
        rows = self.sums.labels[:, index].tolist()
        parts = (step.plans[row] for step, row in zip(self.labels, rows, strict=True))
        return plan_of(tuple((part, offset, 0) for part, offset in zip(parts, self.offsets, strict=True)))


class RelaxedSearch:
    """The searches of one cost table at several prices of a GPU-second."""

    def __init__(self, costs: CostTable, tree: Series) -> None:
        """Takes the layers as chains and branches."""
        self.costs, self.tree = costs, tree
        self._updates = least_update(costs, tree) if costs.overlap else 0.0
        self._works: dict[object, Floats] = {}

    def frontier(self) -> RelaxedFrontier:
        """Returns bounds and plans."""
        return self._of_all_ways() or self._of_prices()

    def solver(self, price: float, *, proving: bool = False) -> BlockSolver:
        """Returns a search at a price of a GPU-second; an infinite one: seconds count for nothing."""
        if math.isinf(price):
            prices = LimitedCosts(self.costs, None, time_price=0.0, work_price=1.0)
        elif self.costs.overlap:
            prices = relaxed_costs(self.costs, self.tree, None, price, updates=False)
        else:
            prices = LimitedCosts(self.costs, None, work_price=price)
        solver = BlockSolver(prices, proving=proving)
        if 0 < price < math.inf:
            solver.works = self._works
        return solver

    def _of_all_ways(self) -> RelaxedFrontier | None:
        """Returns the sums of all ways; None where they are many, or not all are tried."""
        solver = self.solver(1.0, proving=True)
        solver.budget = Budget(MOST_PAIRS)
        steps = solver.steps(self.tree)
        if not all(step.exact for step, _ in steps):
            return None
        try:
            labels = _labels_of(steps, 1.0, solver.budget)
        except ExhaustedError:
            return None
        sums = efficient_sums(labels, MOST_EXACT)
        return RelaxedFrontier(sums.time + self._updates, sums.work, sums, labels, [offset for _, offset in steps])

    def _of_prices(self) -> RelaxedFrontier:
        """Returns bounds by the searches at several prices, and plans near to them."""
        least = LEAST_PRICE / self.costs.network.cluster.gpus
        number = 1 + math.ceil(math.log(MOST_PRICE / least, RATIO))
        prices = np.array([0.0, *(least * RATIO**power for power in range(number)), math.inf])
        solved = [self.solver(price).steps(self.tree) for price in prices.tolist()]
        kinds, offsets = zip(*solved[PRICED], strict=True)
        alone = _labels_of(solved[PRICED], float(prices[PRICED]))
        heights = [
            layer_heights(labels, prices, len(self.costs.gpu_counts))
            if labels.plans
            else np.stack([steps[position][0].lower[0] for steps in solved])
            for position, labels in enumerate(alone)
        ]
        labels, bounds, gap = _bounds(kinds, alone, heights, prices)
        found = _evaluated(bounds, labels, prices.tolist(), solved)
        made = [found.get(kind, one) for kind, one in zip(kinds, alone, strict=True)]
        grid = PriceGrid(prices, BETWEEN)
        lengths = [
            layer_heights(labels, grid.prices, len(self.costs.gpu_counts)) if labels.plans else grid.between(height)
            for labels, height in zip(alone, heights, strict=True)
        ]
        paths = path_bounds(grid.prices, least_path_lengths(lengths))
        time, work = larger((bounds.time / (1 + gap), bounds.work * (1 - ROUNDING)), paths)
        return RelaxedFrontier(time + self._updates, work, efficient_sums(made, MOST_PLANS), made, offsets)


def _evaluated(
    bounds: LabelSums, labels: Sequence[StepLabels], prices: Sequence[float], solved: Sequence[Steps]
) -> dict[PathStep, StepLabels]:
    """Evaluates the blocks of some sums, at the GPU counts and prices of their labels; returns what was found."""
    chosen = spread(bounds.time, EVALUATED)
    found: dict[PathStep, dict[tuple[float, ...], Parts]] = {}
    for position, step in enumerate(labels):
        if step.price is None:
            continue
        rows = np.unique(bounds.labels[position, chosen])
        known = found.setdefault(solved[PRICED][position][0], {})
        wanted = np.unique(np.stack([step.price[rows], step.before[rows], step.after[rows]]), axis=1)
        for number, before, after in wanted.T.tolist():
            way = solved[number][position][0].settle(0, before, after)
            if way.parts:
                known.setdefault((before, after, way.forward + way.backward, way.added / prices[number]), way.parts)
    return {kind: _as_labels(known) for kind, known in found.items()}


def _bounds(
    steps: Sequence[PathStep], alone: Sequence[StepLabels], heights: Sequence[Floats], prices: Floats
) -> tuple[list[StepLabels], LabelSums, float]:
    """Returns labels of each step, their efficient sums, and the gap between two labels.

    First come the sums of vertices alone, which rule out many labels.
    """
    polygons = {
        step: vertex_labels(prices, height)
        for step, labels, height in zip(steps, alone, heights, strict=True)
        if not labels.plans
    }
    labels = [polygons.get(step, one) for step, one in zip(steps, alone, strict=True)]
    rough = efficient_sums(labels, MOST_ROUGH)
    time = rough.seconds(labels)
    rows = efficient_rows(None, time, rough.work)
    useful = SumBounds(prices, heights)
    useful.learn(time[rows], rough.work[rows])
    dense, gap = _dense(labels, useful, GAP), GAP
    number = sum(len(step.before) for step in dense)
    if number > MOST_LABELS:
        gap *= number / MOST_LABELS
        dense = _dense(labels, useful, gap)
    return dense, efficient_sums(dense, MOST_BOUNDS, useful.promising), gap


def _dense(labels: Sequence[StepLabels], useful: SumBounds, gap: float) -> list[StepLabels]:
    """Returns the useful labels of each step, with points between them that are near to each other."""
    found = []
    for position, step in enumerate(labels):
        wanted = useful.useful(position, step)
        if step.price is None:
            found.append(step.keep(wanted))
        else:
            closer = with_points_between(step, wanted, useful.fastest, gap)
            found.append(closer.keep(useful.useful(position, closer)))
    return found


def _labels_of(steps: Steps, price: float, budget: Budget | None = None) -> list[StepLabels]:
    """Returns all labels of each step, found at a price of a GPU-second; without a budget none of blocks."""
    made: dict[PathStep, StepLabels] = {}
    for step, _ in steps:
        if step not in made and (budget is not None or isinstance(step, Edge)):
            found = step.labels(0, np.full(step.lower.shape[1:], np.inf), budget or Budget(0))
            made[step] = replace(found, values=np.stack([found.values[:2].sum(axis=0), found.values[2] / price]))
    nothing = np.zeros(0, dtype=np.intp)
    return [made.get(step, StepLabels(nothing, nothing, np.zeros((2, 0)))) for step, _ in steps]


def _as_labels(found: dict[tuple[float, ...], Parts]) -> StepLabels:
    """Returns labels of plans by their GPU counts before and after, seconds and GPU-seconds."""
    before, after, time, work = np.array(list(found)).T
    return StepLabels(before.astype(np.intp), after.astype(np.intp), np.stack([time, work]), list(found.values()))

"""Efficient sums of labels of a model: lower bounds of all plans, and plans near to them.

The sum of a plan's steps is its seconds in the paper's model, and no more than its seconds where all-reduces overlap
the backward pass (see ``overlap``). Where the ways through all blocks are few they are the labels: the efficient sums
are then exact. Else labels come from searches at several prices of a GPU-second (see ``step_labels``). The blocks of
some efficient sums are then evaluated, at the GPU counts and prices of the sum, and so become labels with a plan each:
their sums are the plans.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import NonSeriesParallel, Series, parts_of
from deeppool.planning.search.label_sums import LabelSums, StepLabels, efficient_rows, efficient_sums, spread
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.overlap import least_update, relaxed_costs
from deeppool.planning.search.parallel_block import BatchedStep, BlockSolver
from deeppool.planning.search.shortest_path import Budget, Choice, ExhaustedError, PartialPlan, Step
from deeppool.planning.search.step_labels import (
    GAP,
    layer_heights,
    layer_labels,
    vertex_labels,
    with_points_between,
)
from deeppool.planning.search.sum_bounds import SumBounds

Plans = tuple[tuple[int, ...], tuple[int, ...]]
"""Per layer, the index of its GPU count, and its first GPU."""
LEAST_PRICE, MOST_PRICE = 0.02, 2000.0
"""Prices of the searches: from the first one, in seconds per second of all GPUs, to the second, per GPU-second."""
RATIO = 2.0
"""Ratio of a price to the one before it."""
MOST_PAIRS = 5_000
"""Pairs of ways to try for all labels of a model."""
MOST_EXACT = 20_000
"""Most sums that end on one GPU count, where all ways are labels."""
MOST_BOUNDS = 1000
"""Most sums that end on one GPU count, where labels are bounds."""
MOST_PLANS = 300
"""The same, where labels are ways that searches found."""
MOST_ROUGH = 60
"""The same, where sums of vertices alone are to rule out labels."""
EVALUATED = 100
"""Sums of bounds whose blocks are evaluated."""


Way = tuple[int, int, float, float, PartialPlan]
"""A way through a step: GPU counts before and after it, seconds, GPU-seconds, and the choices behind them."""


@dataclass(frozen=True, slots=True, eq=False)
class RelaxedFrontier:
    """Bounds of all plans, and plans, whose seconds and GPU-seconds are sums of those of their steps."""

    time: Floats
    """Seconds that no plan with fewer GPU-seconds than the bound before can beat; ascending."""
    work: Floats
    """GPU-seconds, descending; no plan falls below the last."""
    sums: LabelSums
    """Sums of labels with a way each."""
    labels: Sequence[StepLabels]
    ways: Sequence[Sequence[Way]]
    """Per step the way of each label; none of layers alone."""
    layers: Sequence[tuple[int, int]]
    """Per step its layer, and the offset to add to the layers of its ways."""

    def plan(self, index: int) -> Plans:
        """Returns a plan."""
        choices: list[Choice] = []
        rows = self.sums.labels[:, index].tolist()
        for step, ways, row, (layer, offset) in zip(self.labels, self.ways, rows, self.layers, strict=True):
            choices += ways[row][-1].choices(offset) if ways else [Choice(layer, int(step.after[row]), 0)]
        choices.sort()
        return tuple(choice.option for choice in choices), tuple(choice.start for choice in choices)


class RelaxedSearch:
    """The searches of one cost table with one share of the all-reduces that overlap."""

    def __init__(self, costs: CostTable, tree: Series, share: float) -> None:
        """Takes the share; 0 where nothing overlaps."""
        self.costs, self.tree, self.share = costs, tree, share
        self._updates = least_update(costs, tree) if costs.overlap else 0.0

    def frontier(self) -> RelaxedFrontier:
        """Returns bounds and plans."""
        return self._of_all_ways() or self._of_prices()

    def solver(self, price: float, *, bounding: bool = False, proving: bool = False) -> BlockSolver:
        """Returns a search at a price of a GPU-second; an infinite one: seconds count for nothing."""
        if math.isinf(price):
            prices = LimitedCosts(self.costs, None, time_price=0.0, work_price=1.0)
        elif self.costs.overlap:
            prices = relaxed_costs(self.costs, self.tree, None, self.share, price, updates=False)
        else:
            prices = LimitedCosts(self.costs, None, work_price=price)
        return BlockSolver(prices, bounding=bounding, proving=proving)

    def _of_all_ways(self) -> RelaxedFrontier | None:
        """Returns the sums of all ways; None where they are many, or not all are tried."""
        if any(isinstance(part, NonSeriesParallel) for part in parts_of(self.tree)):
            return None
        solver = self.solver(1.0, proving=True)
        solver.budget = Budget(MOST_PAIRS)
        steps = solver.steps(self.tree)
        try:
            ways = [list(_every_way(step)) for step, _ in steps]
        except ExhaustedError:
            return None
        if not solver.complete:
            return None
        labels = _labels_of(ways, steps)
        sums = efficient_sums(labels, MOST_EXACT)
        return RelaxedFrontier(sums.time + self._updates, sums.work, sums, labels, ways, self._layers(steps))

    def _layers(self, steps: Sequence[tuple[Step, int]]) -> list[tuple[int, int]]:
        return [(layer, offset) for layer, (_, offset) in zip(self.tree.layers, steps, strict=True)]

    def _of_prices(self) -> RelaxedFrontier:
        """Returns bounds by the searches at several prices, and plans near to them."""
        least = LEAST_PRICE / self.costs.network.cluster.gpus
        number = 1 + math.ceil(math.log(MOST_PRICE / least, RATIO))
        prices = np.array([0.0, *(least * RATIO**power for power in range(number)), math.inf])
        solved = [self.solver(price, bounding=True).steps(self.tree) for price in prices.tolist()]
        steps = self.solver(1.0).steps(self.tree)
        alone = _labels_of([], steps)
        heights = [
            np.stack([at_price[position][0].lower[0] for at_price in solved])
            if isinstance(step, BatchedStep)
            else layer_heights(alone[position], prices, len(self.costs.gpu_counts))
            for position, (step, _) in enumerate(steps)
        ]
        labels, bounds = _bounds([step for step, _ in steps], alone, heights, prices)
        ways = self._evaluate(bounds, labels, prices.tolist())
        made = _labels_of(ways, steps)
        time = bounds.time / (1 + GAP) + self._updates
        return RelaxedFrontier(time, bounds.work, efficient_sums(made, MOST_PLANS), made, ways, self._layers(steps))

    def _evaluate(
        self, bounds: LabelSums, labels: Sequence[StepLabels], prices: Sequence[float]
    ) -> list[Sequence[Way]]:
        """Evaluates the blocks of some sums, at the GPU counts and prices of their labels."""
        chosen = spread(bounds.time, EVALUATED)
        wanted = [
            (int(step.price[row]), position, int(step.before[row]), int(step.after[row]))
            for position, step in enumerate(labels)
            if step.price is not None
            for row in np.unique(bounds.labels[position, chosen]).tolist()
        ]
        kinds = [step for step, _ in self.solver(0.0).steps(self.tree)]
        found: dict[Step, dict[tuple[float, ...], Way]] = {}
        for number, group in groupby(sorted(set(wanted)), key=lambda item: item[0]):
            price, steps = prices[number], self.solver(prices[number]).steps(self.tree)
            for _, position, before, after in group:
                way = steps[position][0].settle(0, before, after)
                if way.time < math.inf:
                    made = (before, after, way.time - way.added, way.added / price, way)
                    found.setdefault(kinds[position], {}).setdefault(made[:4], made)
        return [list(found.get(kind, {}).values()) for kind in kinds]


def _bounds(
    steps: Sequence[Step], alone: Sequence[StepLabels], heights: Sequence[Floats], prices: Floats
) -> tuple[list[StepLabels], LabelSums]:
    """Returns labels of each step, and their efficient sums; first those of vertices alone, which rule out many."""
    polygons = {
        step: vertex_labels(prices, height)
        for step, height in zip(steps, heights, strict=True)
        if isinstance(step, BatchedStep)
    }
    labels = [
        polygons.get(step, one) if isinstance(step, BatchedStep) else one
        for step, one in zip(steps, alone, strict=True)
    ]
    rough = efficient_sums(labels, MOST_ROUGH)
    time = rough.seconds(labels)
    rows = efficient_rows(np.zeros(len(time), dtype=np.intp), time, rough.work)
    useful = SumBounds(prices, heights)
    useful.learn(time[rows], rough.work[rows])
    for position, step in enumerate(labels):
        wanted = useful.useful(position, step)
        labels[position] = step.keep(wanted)
        if step.price is not None:
            closer = with_points_between(step, wanted, useful.fastest)
            labels[position] = closer.keep(useful.useful(position, closer))
    return labels, efficient_sums(labels, MOST_BOUNDS, useful.promising)


def _every_way(step: Step) -> Iterator[Way]:
    """Yields the efficient ways through a block at the price 1 of a GPU-second; none of a layer alone."""
    if isinstance(step, BatchedStep):
        for before, after in np.argwhere(np.isfinite(step.lower[0])).tolist():
            for way in step.front(0, before, after, math.inf):
                yield before, after, way.time - way.added, way.added, way


def _labels_of(ways: Sequence[Sequence[Way]], steps: Sequence[tuple[Step, int]]) -> list[StepLabels]:
    """Returns the labels of the ways of each step; of layers alone, and where there are none, those of its costs."""
    made: dict[Step, StepLabels] = {}
    for (step, _), found in zip(steps, ways or [()] * len(steps), strict=True):
        if step not in made:
            before, after, time, work = (np.array([way[number] for way in found]) for number in range(4))
            made[step] = StepLabels(before, after, time, work) if found else layer_labels(step)
    return [made[step] for step, _ in steps]

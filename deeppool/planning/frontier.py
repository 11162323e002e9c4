"""Every efficient plan of a model at once: iteration time against GPU-seconds.

The same recursion as the exact search (see ``search``), over Pareto fronts instead of least times. A
global amplification limit is then a point of the frontier: the fastest plan whose GPU-seconds are at most
the limit times the single-GPU iteration time.

A chain's frontier is exact. Inside blocks, where fronts multiply, and on very long chains, fronts are
thinned. Branches run one after another in all of these plans; where a block has several, the exact
search adds plans that run them side by side, one for each of a few limits per layer. The frontier of such
a model is not complete, and states how far from complete it can be: a bound that holds for all plans
comes from prices for GPU-seconds (see ``relaxation``).
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from deeppool.cluster import Cluster
from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.regions import INPUT, Block, Knot, Series, decompose, parts_of
from deeppool.planning.pareto import NOTHING, Front, combine, single, undominated
from deeppool.planning.placement import Placement
from deeppool.planning.relaxation import Relaxation
from deeppool.planning.search import SearchResult, certificate, search
from deeppool.units import format_bytes, format_seconds

CHAIN_POINTS = 20_000
"""Of the frontier of a chain, which is exact below that."""
SERIES_PAIRS, BLOCK_PAIRS = 40_000, 1_000
"""With blocks, points of a series and of a block, times the square of the number of GPU counts."""
LIMITS = (None, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Per layer, of the plans that may run branches side by side."""
PRICES = 40
"""Of a GPU-second, that the bound is computed for."""

Fronts = list[list[Front]]
"""Per GPU count before (rows) and of the last layer (columns)."""


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One efficient plan."""

    iteration_time: float
    gpu_seconds: float
    amplification: float
    """gpu_seconds / single-GPU iteration time."""
    gpu_counts: tuple[int, ...]
    """Per layer."""
    first_gpus: tuple[int, ...]
    """Per layer; not 0 where branches run side by side."""
    memory: int | None = None
    """Bytes on the GPU that holds most; None: the profile does not say what layers keep."""


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

    @property
    def fitting(self) -> tuple[FrontierPoint, ...]:
        """The points whose plans fit into the GPUs' memory, as far as both are known."""
        capacity = math.inf if self.cluster.memory is None else self.cluster.memory
        return tuple(point for point in self.points if (point.memory or 0) <= capacity)

    def within(self, amplification_limit: float | None) -> FrontierPoint:
        """The fastest plan under a limit on the whole iteration's amplification, whether or not it fits."""
        if amplification_limit is None:
            return self.points[0]
        # Amplification descends along the points.
        position = bisect_left(
            self.points, -amplification_limit * (1 + TOLERANCE), key=lambda point: -point.amplification
        )
        return self.points[position]

    def __str__(self) -> str:
        first, last = self.points[0], self.points[-1]
        capacity = self.cluster.memory or 0
        too_large = len(self.points) - len(self.fitting)
        return (
            f"{self.model}, batch {self.global_batch} on {self.gpus} GPUs ({self.cluster.name}): "
            f"{len(self.points)} efficient plans, from {format_seconds(first.iteration_time)} at amplification "
            f"{first.amplification:.2f} to {format_seconds(last.iteration_time)} at {last.amplification:.2f}; "
            f"data parallel {format_seconds(self.data_parallel_iteration_time)}; {self.optimality}"
        ) + (f"; {too_large} need more than the {format_bytes(capacity)} of a GPU" if too_large else "")


@dataclass(frozen=True, slots=True)
class Efficient:
    """A frontier as the search leaves it: points to be traced one by one."""

    time: Floats
    """Seconds, ascending."""
    work: Floats
    """GPU-seconds, descending."""
    optimality: str
    trace: Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]]
    """Of a point, per layer the index of its GPU count and its first GPU."""

    def within(self, work: float) -> int:
        """The fastest point with at most so many GPU-seconds."""
        position = bisect_left(self.work, -work * (1 + TOLERANCE), key=lambda value: -value)
        return min(position, len(self.work) - 1)


def efficient_plans(costs: CostTable) -> Efficient:
    """The frontier of a cost table."""
    tree = decompose([layer.predecessors for layer in costs.graph.layers])
    parts = list(parts_of(tree))
    squares = len(costs.gpu_counts) ** 2
    most = CHAIN_POINTS if len(parts) == 1 else max(SERIES_PAIRS // squares, 50)
    fronts = _Fronts(costs, max(BLOCK_PAIRS // squares, 5)).series(tree, INPUT, most)[0]
    front = combine([(last, NOTHING) for last in fronts], most=most)
    several = len(costs.gpu_counts) > 1 and any(isinstance(part, Block) and len(part.branches) > 1 for part in parts)
    lanes = [search(costs, limit) for limit in LIMITS] if several else []
    placements = [Placement(costs, found.choices, found.starts) for found in lanes]
    time = np.array([*front.time, *(found.iteration_time for found in lanes)])
    work = np.array([*front.work, *(placement.gpu_seconds for placement in placements)])
    kept = undominated(time, work)

    def trace(point: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        index = int(kept[point]) - len(front)
        if index >= 0:
            return placements[index].options, placements[index].starts
        options = tuple(option for _, option in sorted(front.trace(int(kept[point]))))
        return options, (0,) * len(options)

    if several or any(isinstance(part, Knot) for part in parts):
        factor = _distance(costs, tree, time[kept], work[kept])
    else:
        factor = min(front.factor, _distance(costs, tree, time[kept], work[kept])) if front.factor > 1 else 1.0
    return Efficient(time[kept], work[kept], certificate(factor), trace)


def search_within(costs: CostTable, limit: float | None) -> SearchResult:
    """The least iteration time whose GPU-seconds are at most ``limit`` times the single-GPU iteration time."""
    efficient = efficient_plans(costs)
    point = efficient.within(math.inf if limit is None else limit * costs.single_gpu_time)
    options, starts = efficient.trace(point)
    return SearchResult(options, starts, float(efficient.time[point]), efficient.optimality)


def _distance(costs: CostTable, tree: Series, time: Floats, work: Floats) -> float:
    """By how much a plan may be faster than the point with its GPU-seconds, at most.

    With a price p of a GPU-second no plan is better than ``least(p)``, so one with at most w GPU-seconds takes
    ``least(p) - p w`` at least. The prices lie between the least and the greatest slope of the front.
    """
    # Between two points the first one is the best there is, up to the GPU-seconds of the next faster one.
    before = np.concatenate([[math.inf], work[:-1]])
    bounds = np.full(len(time), Relaxation(costs, 0.0).least(tree))
    slopes = np.diff(time) / -np.diff(work)
    for price in np.geomspace(slopes.min(), slopes.max(), PRICES) if len(slopes) else ():
        bounds = np.maximum(bounds, Relaxation(costs, float(price)).least(tree) - price * before)
    return float((time / bounds).max())


class _Fronts:
    """One cost table."""

    def __init__(self, costs: CostTable, most: int) -> None:
        self.costs = costs
        self.most = most
        """Points of a front inside a block."""
        self.own = costs.compute + costs.sync
        self.counts = costs.gpu_counts
        self._edges: dict[int, list[list[float]]] = {}

    def _edge(self, source: int, layer: int) -> list[list[float]]:
        """(from, to) seconds to bring one predecessor's samples to a layer."""
        if source == INPUT:
            return [[0.0] * len(self.counts)]
        consumer = self.costs.graph.layers[layer]
        size = consumer.input_bytes[consumer.predecessors.index(source)]
        if size not in self._edges:
            self._edges[size] = self.costs.comm(size).tolist()
        return self._edges[size]

    def series(self, series: Series, fork: int, most: int) -> Fronts:
        rows = 1 if fork == INPUT else len(self.counts)
        fronts: Fronts | None = None
        previous = fork
        for layer, block in zip(series.layers, series.blocks, strict=True):
            steps = self._steps(block, previous, layer)
            done: Fronts = []
            for before in range(rows):
                if fronts is None:
                    done.append(
                        [combine([(NOTHING, steps[before][g])], ((layer, g),)) for g in range(len(self.counts))]
                    )
                else:
                    done.append(
                        [
                            combine([(way, steps[h][g]) for h, way in enumerate(fronts[before])], ((layer, g),), most)
                            for g in range(len(self.counts))
                        ]
                    )
            fronts = done
            previous = layer
        assert fronts is not None
        return fronts

    def _steps(self, block: Block | Knot | None, fork: int, layer: int) -> Fronts:
        """From a cut to the next one, the next one's own time included."""
        if isinstance(block, Knot):
            return self._knot(block, fork, layer)
        moved = self._edge(fork, layer) if block is None or block.direct else self._nothing(fork)
        own = self.own[layer].tolist()
        steps = [
            [single(move + time, (move + time) * g) for move, time, g in zip(row, own, self.counts, strict=True)]
            for row in moved
        ]
        return self._through(block, fork, layer, steps) if block else steps

    def _through(self, block: Block, fork: int, join: int, fronts: Fronts) -> Fronts:
        """Adds the branches of a block, from each count of the fork to each of the join."""
        for branch in block.branches:
            ways = self._to_join(branch, fork, join)
            fronts = [
                [combine([(front, way)], most=self.most) for front, way in zip(*rows, strict=True)]
                for rows in zip(fronts, ways, strict=True)
            ]
        return fronts

    def _to_join(self, branch: Series, fork: int, join: int) -> Fronts:
        """A branch and the transfer of its results to the join, which the join's GPUs wait for."""
        last = branch.layers[-1]
        read = last in self.costs.graph.layers[join].predecessors
        moved = self._edge(last, join) if read else self._nothing(last)
        rest = [[single(move, move * g) for move, g in zip(row, self.counts, strict=True)] for row in moved]
        if branch.tail is not None:
            rest = self._through(branch.tail, last, join, rest)
        return [
            [combine([(way, rest[m][g]) for m, way in enumerate(ways)], most=self.most) for g in self._options]
            for ways in self.series(branch, fork, self.most)
        ]

    def _knot(self, knot: Knot, fork: int, join: int) -> Fronts:
        """The knot's layers all on one GPU count, whichever."""
        fronts = []
        for before in range(len(self._nothing(fork))):
            row = []
            for after in self._options:
                ways = [self._alike(knot, fork, join, (before, option, after)) for option in self._options]
                row.append(combine([(NOTHING, way) for way in ways], most=self.most))
            fronts.append(row)
        return fronts

    def _alike(self, knot: Knot, fork: int, join: int, options: tuple[int, int, int]) -> Front:
        """One point: GPU counts of the fork, of all layers of a knot, and of its join."""
        before, option, after = options
        time = work = 0.0
        for layer in (*knot.layers, join):
            here = after if layer == join else option
            seconds = float(self.own[layer, here])
            for source in self.costs.graph.layers[layer].predecessors or (INPUT,):
                seconds += self._edge(source, layer)[before if source == fork else option][here]
            time, work = time + seconds, work + seconds * self.counts[here]
        return single(time, work, tuple((layer, option) for layer in knot.layers))

    def _nothing(self, fork: int) -> list[list[float]]:
        """(from, to) no seconds."""
        return [[0.0] * len(self.counts)] * (1 if fork == INPUT else len(self.counts))

    @property
    def _options(self) -> range:
        return range(len(self.counts))

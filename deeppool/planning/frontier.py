"""Every efficient plan of a model at once: iteration time against GPU-seconds.

The same recursion as the exact search (see ``search``), over Pareto fronts instead of least times. A
global amplification limit is then a point of the frontier: the fastest plan whose GPU-seconds are at most
the limit times the single-GPU iteration time. A chain's frontier is exact; inside blocks, where fronts
multiply, and on very long chains, fronts are thinned and the frontier states its bound.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import ClassVar

from deeppool.cluster import Cluster
from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable
from deeppool.graph.regions import Block, Series, Tangle, decompose, has_tangle
from deeppool.planning.pareto import NOTHING, Front, combine, single
from deeppool.planning.search import INPUT, SearchResult, certificate, lower_bound
from deeppool.units import format_seconds

CHAIN_POINTS = 20_000
BLOCK_POINTS = 64

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

    def within(self, amplification_limit: float | None) -> FrontierPoint:
        """The fastest plan under a limit on the whole iteration's amplification."""
        if amplification_limit is None:
            return self.points[0]
        # Amplification descends along the points.
        position = bisect_left(
            self.points, -amplification_limit * (1 + TOLERANCE), key=lambda point: -point.amplification
        )
        return self.points[position]

    def __str__(self) -> str:
        first, last = self.points[0], self.points[-1]
        return (
            f"{self.model}, batch {self.global_batch} on {self.gpus} GPUs ({self.cluster.name}): "
            f"{len(self.points)} efficient plans, from {format_seconds(first.iteration_time)} at amplification "
            f"{first.amplification:.2f} to {format_seconds(last.iteration_time)} at {last.amplification:.2f}; "
            f"data parallel {format_seconds(self.data_parallel_iteration_time)}; {self.optimality}"
        )


@dataclass(frozen=True, slots=True)
class Efficient:
    """A frontier as the search leaves it: points to be traced one by one."""

    front: Front
    optimality: str

    def choices(self, point: int) -> tuple[int, ...]:
        """Per layer the index into the cost table's GPU counts."""
        return tuple(option for _, option in sorted(self.front.trace(point)))

    def within(self, work: float) -> int:
        """The fastest point with at most so many GPU-seconds."""
        position = bisect_left(self.front.work, -work * (1 + TOLERANCE), key=lambda value: -value)
        return min(position, len(self.front) - 1)


def efficient_plans(costs: CostTable) -> Efficient:
    """The frontier of a cost table."""
    tree = decompose(costs.graph)
    fronts = _Fronts(costs)
    front = combine([(last, NOTHING) for last in fronts.passage(tree, INPUT, CHAIN_POINTS)[0]], most=CHAIN_POINTS)
    factor = float(front.time[0]) / lower_bound(costs, None) if has_tangle(tree) else front.factor
    return Efficient(front, certificate(factor))


def search_within(costs: CostTable, limit: float | None) -> SearchResult:
    """The least iteration time whose GPU-seconds are at most ``limit`` times the single-GPU iteration time."""
    efficient = efficient_plans(costs)
    work = math.inf if limit is None else limit * costs.single_gpu_time
    point = efficient.within(work)
    return SearchResult(efficient.choices(point), float(efficient.front.time[point]), efficient.optimality)


class _Fronts:
    """One cost table."""

    def __init__(self, costs: CostTable) -> None:
        self.costs = costs
        self.own = costs.compute + costs.sync
        self.counts = costs.gpu_counts

    def passage(self, tree: Series | Tangle, fork: int, most: int) -> Fronts:
        return self._series(tree, fork, most) if isinstance(tree, Series) else self._tangle(tree, fork)

    def _edge(self, source: int, layer: int) -> list[list[float]]:
        """(from, to) seconds to bring one predecessor's samples to a layer."""
        if source == INPUT:
            return [[0.0] * len(self.counts)]
        consumer = self.costs.graph.layers[layer]
        edge: list[list[float]] = self.costs.comm(consumer.input_bytes[consumer.predecessors.index(source)]).tolist()
        return edge

    def _series(self, series: Series, fork: int, most: int) -> Fronts:
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

    def _steps(self, block: Block | None, fork: int, layer: int) -> Fronts:
        """From a cut to the next one, the next one's own time included."""
        if block is None or block.direct:
            moved = self._edge(fork, layer)
        else:
            moved = [[0.0] * len(self.counts)] * (1 if fork == INPUT else len(self.counts))
        own = self.own[layer].tolist()
        steps = [
            [single(move + time, (move + time) * g) for move, time, g in zip(row, own, self.counts, strict=True)]
            for row in moved
        ]
        for branch in block.branches if block else ():
            ways = self._to_join(branch, fork, layer)
            steps = [
                [combine([(step, way)], most=BLOCK_POINTS) for step, way in zip(*rows, strict=True)]
                for rows in zip(steps, ways, strict=True)
            ]
        return steps

    def _to_join(self, branch: Series | Tangle, fork: int, join: int) -> Fronts:
        """A branch and the transfer of its results to the join, which the join's GPUs wait for."""
        sources = sorted(set(self.costs.graph.layers[join].predecessors) & set(branch.layers))
        edges = [self._edge(source, join) for source in sources]
        counts = range(len(self.counts))
        moved = [[sum(edge[m][g] for edge in edges) for g in counts] for m in counts]
        moves = [[single(moved[m][g], moved[m][g] * self.counts[g]) for g in counts] for m in counts]
        return [
            [combine([(way, moves[m][g]) for m, way in enumerate(ways)], most=BLOCK_POINTS) for g in counts]
            for ways in self.passage(branch, fork, BLOCK_POINTS)
        ]

    def _tangle(self, tangle: Tangle, fork: int) -> Fronts:
        """All layers on one GPU count."""
        rows = 1 if fork == INPUT else len(self.counts)
        fronts = []
        for before in range(rows):
            row = []
            for option, count in enumerate(self.counts):
                time = 0.0
                for layer in tangle.layers:
                    sources = self.costs.graph.layers[layer].predecessors or (INPUT,)
                    time += float(self.own[layer, option])
                    time += self._edge(fork, layer)[before][option] if fork in sources else 0.0
                row.append(single(time, time * count, tuple((layer, option) for layer in tangle.layers)))
            fronts.append(row)
        return fronts

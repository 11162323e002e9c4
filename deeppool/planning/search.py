"""The exact search: the least iteration time among the plans that keep the amplification limit.

DeepPool's Algorithm 1 fixes the best predecessor before it looks at the limit, so it can miss the
optimum and break the limit. But the amplification of a layer depends only on the edge into it,

    Amp(i, h -> g) = (comm(h -> g) + comp(i, g) + sync(i, g)) x g / comp(i, 1),

so dropping the edges over the limit leaves a plain shortest path: exact, at the same complexity,
O(layers x counts^2). Everything on one GPU has amplification 1, so a plan always exists.

Branches run one after another, each on GPUs 0 … g - 1. A block is reduced to an edge from its fork to
its join: per branch a shortest path for every GPU count of the fork, then, because the join pays the
incoming transfers of all branches under *one* limit, the cheapest combination of their last layers
that leaves the join under it (a Pareto front over transfer time and time). Also exact. A tangle
(see graph/regions.py) takes one GPU count as a whole, and the plan then states a bound instead.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from deeppool.costs.amplification import time_allowance
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.regions import Block, Series, Tangle, decompose, has_tangle

Choice = tuple[int, int]
"""A layer and the index of its GPU count."""
Trace = Callable[[int, int], Iterator[Choice]]
INPUT = -1
"""The fork before the first layers: data is loaded where it is needed, at no cost."""


@dataclass(frozen=True, slots=True)
class Passage:
    """The best ways through some layers, from each GPU count before them to each of the last one."""

    time: Floats
    """(before, last) seconds; inf where the limit permits none."""
    trace: Trace
    """The choices behind one entry of ``time``."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Choices of one search."""

    choices: tuple[int, ...]
    """Per layer the index into ``gpu_counts``."""
    iteration_time: float
    optimality: str
    """``exact``, or ``bound x``: at most x times the optimum."""


def search(costs: CostTable, limit: float | None, extra: Floats | None = None) -> SearchResult:
    """The least iteration time under a per-layer amplification limit (None: no limit).

    Args:
        costs: prices.
        limit: on the amplification of each layer.
        extra: (L, K) seconds that the search adds to each layer's time when it compares plans; neither the
            limit nor ``SearchResult.iteration_time`` counts them, and optimality is claimed of the sum.
    """
    solver = _Solver(costs, np.inf if limit is None else limit, extra)
    tree = decompose(costs.graph)
    passage = solver.passage(tree, INPUT)
    last = int(np.argmin(passage.time[0]))
    choices = dict(passage.trace(0, last))
    ordered = tuple(choices[layer] for layer in range(len(costs.graph.layers)))
    objective = float(passage.time[0, last])
    time = objective if extra is None else _iteration_time(costs, ordered)
    factor = objective / lower_bound(costs, limit, extra) if has_tangle(tree) else 1.0
    return SearchResult(ordered, time, certificate(factor))


def _iteration_time(costs: CostTable, choices: tuple[int, ...]) -> float:
    own = (costs.compute + costs.sync)[range(len(choices)), choices]
    transfers = sum(
        float(costs.comm(size)[choices[source], choice])
        for layer, choice in zip(costs.graph.layers, choices, strict=True)
        for source, size in zip(layer.predecessors, layer.input_bytes, strict=True)
    )
    return float(own.sum()) + transfers


def certificate(factor: float) -> str:
    """What is claimed of a time that is at most ``factor`` times the least one; rounded up, or it would be no bound."""
    return "exact" if factor == 1.0 else f"bound {math.ceil(1000 * factor) / 1000:.3f}"


def lower_bound(costs: CostTable, limit: float | None, extra: Floats | None = None) -> float:
    """Seconds, ``extra`` ones included, that no plan can beat: every layer on its best GPU count, transfers free."""
    own = costs.compute + costs.sync
    counts = np.array(costs.gpu_counts, dtype=float)
    allowances = [time_allowance(np.inf if limit is None else limit, counts, x) for x in costs.compute[:, 0]]
    total = own if extra is None else own + extra
    return float(np.where(own <= np.array(allowances), total, np.inf).min(axis=1).sum())


def _product(before: Floats, step: Floats) -> tuple[Floats, np.ndarray]:
    """Shortest two-step paths, (a, b) then (b, c), and the middle of each."""
    paths = before[:, :, None] + step[None, :, :]
    middle = np.argmin(paths, axis=1)
    return np.take_along_axis(paths, middle[:, None, :], axis=1)[:, 0, :], middle


class _Solver:
    """One cost table under one limit."""

    def __init__(self, costs: CostTable, limit: float, extra: Floats | None) -> None:
        self.costs = costs
        self.own = costs.compute + costs.sync
        self.extra = np.zeros_like(self.own) if extra is None else extra
        counts = np.array(costs.gpu_counts, dtype=float)
        self.allowance = np.array([time_allowance(limit, counts, single) for single in costs.compute[:, 0]])

    def passage(self, tree: Series | Tangle, fork: int) -> Passage:
        return self._series(tree, fork) if isinstance(tree, Series) else self._tangle(tree, fork)

    def _edge(self, source: int, layer: int) -> Floats:
        """(from, to) seconds to bring one predecessor's samples to a layer; (1, to) zeros for data."""
        if source == INPUT:
            return np.zeros((1, len(self.costs.gpu_counts)))
        consumer = self.costs.graph.layers[layer]
        return self.costs.comm(consumer.input_bytes[consumer.predecessors.index(source)])

    def _series(self, series: Series, fork: int) -> Passage:
        size = 1 if fork == INPUT else len(self.costs.gpu_counts)
        time = np.where(np.eye(size, dtype=bool), 0.0, np.inf)
        previous = fork
        middles: list[np.ndarray] = []
        steps: list[Passage] = []
        for layer, block in zip(series.layers, series.blocks, strict=True):
            step = self._step(block, previous, layer)
            time, middle = _product(time, step.time)
            middles.append(middle)
            steps.append(step)
            previous = layer

        def trace(before: int, last: int) -> Iterator[Choice]:
            for layer, middle, step in zip(reversed(series.layers), reversed(middles), reversed(steps), strict=True):
                yield layer, last
                source = int(middle[before, last])
                yield from step.trace(source, last)
                last = source

        return Passage(time, trace)

    def _step(self, block: Block | None, fork: int, layer: int) -> Passage:
        """From a cut to the next one: an edge, or a block seen as an edge. Includes the next cut's own time."""
        if block is None:
            time = self._edge(fork, layer) + self.own[layer]
            within = time <= self.allowance[layer]
            return Passage(np.where(within, time + self.extra[layer], np.inf), lambda *_: iter(()))
        direct = self._edge(fork, layer) if block.direct else np.zeros((1, 1))
        passages = [self.passage(branch, fork) for branch in block.branches]
        entries = [self._entry(branch, layer) for branch in block.branches]
        return self._join(passages, entries, direct + self.own[layer], layer)

    def _entry(self, branch: Series | Tangle, join: int) -> Floats:
        """(last of the branch, join) seconds to bring a branch's results to the join."""
        sources = set(self.costs.graph.layers[join].predecessors) & set(branch.layers)
        entry: Floats = np.sum([self._edge(source, join) for source in sorted(sources)], axis=0)
        return entry

    def _join(self, passages: list[Passage], entries: list[Floats], own: Floats, layer: int) -> Passage:
        allowance, extra = self.allowance[layer], self.extra[layer]
        free = [_product(passage.time, entry) for passage, entry in zip(passages, entries, strict=True)]
        incoming = sum(
            np.take_along_axis(entry, middle, axis=0) for entry, (_, middle) in zip(entries, free, strict=True)
        )
        within = np.asarray(incoming + own <= allowance)
        time = np.where(within, sum(time for time, _ in free) + own + extra, np.inf)
        lasts = np.stack([middle for _, middle in free])
        least = sum(entry.min(axis=0) for entry in entries) + np.broadcast_to(own, time.shape)
        # The branches' fastest ends leave the join over its limit here; dearer ends may not.
        for fork, join in zip(*np.nonzero(~within & (least <= allowance)), strict=True):
            slack = float(allowance[join] - np.broadcast_to(own, time.shape)[fork, join])
            ends = [(entry[:, join], passage.time[fork]) for entry, passage in zip(entries, passages, strict=True)]
            best = _cheapest_ends(ends, slack)
            if best is not None:
                time[fork, join] = best[0] + np.broadcast_to(own + extra, time.shape)[fork, join]
                lasts[:, fork, join] = best[1]

        def trace(fork: int, join: int) -> Iterator[Choice]:
            for passage, last in zip(passages, lasts[:, fork, join], strict=True):
                yield from passage.trace(fork, int(last))

        return Passage(time, trace)

    def _tangle(self, tangle: Tangle, fork: int) -> Passage:
        """All layers on one GPU count: no transfers inside."""
        time = np.zeros((1, len(self.costs.gpu_counts)))
        for layer in tangle.layers:
            predecessors = self.costs.graph.layers[layer].predecessors or (INPUT,)
            cost = self.own[layer] + (self._edge(fork, layer) if fork in predecessors else 0.0)
            time = time + np.where(cost <= self.allowance[layer], cost + self.extra[layer], np.inf)
        if fork != INPUT:
            time = np.broadcast_to(time, (len(self.costs.gpu_counts),) * 2)
        return Passage(time, lambda _, last: ((layer, last) for layer in tangle.layers))


def _cheapest_ends(ends: list[tuple[Floats, Floats]], slack: float) -> tuple[float, tuple[int, ...]] | None:
    """Picks one end per branch: least total time whose transfers together fit into ``slack``.

    Args:
        ends: per branch, over the GPU counts of its last layer, transfer time to the join and time so far.
        slack: seconds that the join's limit leaves for transfers.
    """
    front: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]
    for transfers, times in ends:
        usable = [k for k in range(len(times)) if np.isfinite(times[k]) and transfers[k] <= slack]
        candidates = sorted(
            (moved + transfers[k], spent + transfers[k] + times[k], (*picked, k))
            for moved, spent, picked in front
            for k in usable
            if moved + transfers[k] <= slack
        )
        front, best = [], np.inf
        for candidate in candidates:
            if candidate[1] < best:
                best = candidate[1]
                front.append(candidate)
    return min(((spent, picked) for _, spent, picked in front), default=None)

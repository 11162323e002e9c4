"""Lower bound of the iteration time of all plans, from potentials along one path of the graph.

No module of the search is used here, so that the bound can check what a search claims.

Take a path of layers from the data to the last layer. An iteration takes at least the seconds of the path's layers and
of the transfers between them. The potential of a layer on k GPUs is the least sum up to there,

    potential(i, k) = min over h of potential(i - 1, h) + transfer(h -> k) + layer(i, k),

over the transfers that the amplification limit permits; that of the last layer on its best count is the bound. For a
chain in the paper's model it is the optimum.

Three more facts make the sum larger, each with a weight:

- N GPUs spend at most N x iteration time, so GPU-seconds / N count with any weight w if the path counts 1 - w. They are
  those of the path, and the least of every other layer.
- Under a limit on the iteration, price x (GPU-seconds - budget) is at most 0 for every permitted plan.
- Where all-reduces overlap the backward pass, F + B and F + S are both at most the iteration time: forward, backward,
  and all-reduces of the layers on every path, whose GPUs share GPU 0 and start none before the backward pass. So
  F + (1 - share) B + share S is, too. The update of these layers comes on top.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from deeppool.costs.amplification import TOLERANCE, time_allowance
from deeppool.costs.communication import SAME_START
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import INPUT, decompose

WORK_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Weights of GPU-seconds / N."""
SYNC_SHARES = (0.0, 0.25, 0.5, 0.75, 0.95)
"""Shares of the all-reduces that overlap."""
PRICES = (0.0, *np.geomspace(1e-3, 10, 33).tolist())
"""N x price of a GPU-second under a limit on the iteration."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights of a sum that no plan falls below."""

    path: float
    work: float
    """Of a GPU-second."""
    sync_share: float
    """Share of the all-reduces that overlap."""


class LowerBound:
    """Lower bounds of a cost table's plans by one path."""

    def __init__(self, costs: CostTable, path: Sequence[int], limit: float | None) -> None:
        """Takes the path and the limit on each layer's amplification.

        Args:
            costs: seconds.
            path: layers from one that reads data to the last one, each a predecessor of the next.
            limit: None: no limit.
        """
        self.costs, self.path = costs, path
        self.counts: Floats = np.array(costs.gpu_counts, dtype=float)
        self._own: Floats = costs.compute + costs.sync
        limit = np.inf if limit is None else limit
        self._allowed: Floats = np.array([time_allowance(limit, self.counts, one) for one in costs.compute[:, 0]])
        tree = decompose([layer.predecessors for layer in costs.graph.layers])
        self._on_every_path = frozenset(tree.layers)
        self._single_start = tree.blocks[0] is None
        self._edges = [self._transfer(source, layer) for source, layer in pairwise(path)]
        """Per layer of the path but the first (from, to) seconds of the transfer into it, inf over the limit."""
        self._least_sync = {layer: self._least_sync_of(layer) for layer in tree.layers} if costs.overlap else {}
        """Per layer on every path (K,) seconds that its gradients add at least to the all-reduces of its GPUs."""

    def seconds(self, iteration_limit: float | None = None) -> float:
        """Returns seconds that no iteration within the limits can beat."""
        shares = SYNC_SHARES if self.costs.overlap else (0.0,)
        one_gpu = self.costs.single_gpu_time
        # A price and a weight of GPU-seconds do the same to the sum.
        prices, weights = ((0.0,), WORK_WEIGHTS) if iteration_limit is None else (PRICES, (0.0,))
        budget = 0.0 if iteration_limit is None else iteration_limit * one_gpu * (1 + TOLERANCE)
        gpus = self.costs.network.cluster.gpus
        least = 0.0
        for price in (price / gpus for price in prices):
            for weight in weights:
                for share in shares:
                    value = self._least(_Weights(1 - weight, weight / gpus + price, share))
                    least = max(least, value - price * budget)
        return least

    def _least(self, weights: _Weights) -> float:
        """Returns the least weighted sum of all plans."""
        apart = sum(float(self._work(layer).min()) for layer in self._others()) * weights.work if weights.work else 0.0
        updates = float(self.costs.update[sorted(self._on_every_path)].sum()) * weights.path
        potential: Floats = self._layer(self.path[0], weights) + np.where(self._permitted(self.path[0]), 0.0, np.inf)
        # Half of a transfer is in the backward pass.
        weight = weights.path * (1 - weights.sync_share / 2) + weights.work * self.counts
        for layer, moved in zip(self.path[1:], self._edges, strict=True):
            potential = (potential[:, None] + moved * weight).min(axis=0) + self._layer(layer, weights)
        return float(potential.min()) + apart + updates

    def _others(self) -> Iterator[int]:
        on_path = set(self.path)
        return (layer for layer in range(len(self._own)) if layer not in on_path)

    def _transfer(self, source: int, layer: int) -> Floats:
        """Returns (from, to) seconds of the transfer into a layer; inf over its limit."""
        consumer = self.costs.graph.layers[layer]
        size = consumer.input_bytes[consumer.predecessors.index(source)]
        # Branches side by side may be elsewhere, which no sample reaches faster.
        moved = self.costs.comm(size, SAME_START)
        permitted = moved + self._own[layer] <= self._allowed[layer]
        edge: Floats = np.where(permitted, moved, np.inf)
        return edge

    def _layer(self, layer: int, weights: _Weights) -> Floats:
        """Returns (K,) the weighted seconds and GPU-seconds of a layer of the path."""
        costs, share = self.costs, weights.sync_share
        if not costs.overlap:
            seconds = self._own[layer]
        else:
            seconds = costs.forward[layer] + (1 - share) * costs.backward[layer]
            if layer in self._on_every_path:
                # The first layer's backward pass is the last one: nothing is left that could hide its all-reduce.
                first = self._single_start and layer == self.path[0]
                seconds = seconds + (1.0 if first else share) * self._least_sync[layer]
        found: Floats = weights.path * seconds
        return found + weights.work * self._work(layer, permitted=False) if weights.work else found

    def _work(self, layer: int, *, permitted: bool = True) -> Floats:
        """Returns (K,) GPU-seconds of a layer and its update without transfers; inf over its limit if asked for."""
        costs = self.costs
        seconds = costs.compute[layer] + costs.update[layer] if costs.overlap else self._own[layer]
        work: Floats = seconds * self.counts
        return np.where(self._permitted(layer), work, np.inf) if permitted else work

    def _permitted(self, layer: int) -> NDArray[np.bool_]:
        permitted: NDArray[np.bool_] = self._own[layer] <= self._allowed[layer]
        return permitted

    def _least_sync_of(self, layer: int) -> Floats:
        graph, network = self.costs.graph, self.costs.network
        size, largest = graph.gradient_bytes[layer], self.costs.buckets.largest(graph.gradient_bytes)
        if any(users[0] == layer and tied < size for users, tied in graph.tied.items()):
            # A tied parameter may be summed apart from the layer's others.
            largest = max(largest, size)
        elif size >= self.costs.buckets.largest_joined:
            alone: Floats = self.costs.sync[layer]
            return alone
        return size * np.array([network.least_seconds_per_byte(count, largest) for count in self.costs.gpu_counts])


def longest_path(predecessors: Sequence[tuple[int, ...]], seconds: Sequence[float]) -> tuple[int, ...]:
    """Returns the path to the last layer whose layers take the most seconds."""
    longest, before = [0.0] * len(seconds), [INPUT] * len(seconds)
    for layer, sources in enumerate(predecessors):
        if sources:
            before[layer] = max(sources, key=longest.__getitem__)
            longest[layer] = longest[before[layer]]
        longest[layer] += seconds[layer]
    path = [len(seconds) - 1]
    while before[path[-1]] != INPUT:
        path.append(before[path[-1]])
    return tuple(reversed(path))

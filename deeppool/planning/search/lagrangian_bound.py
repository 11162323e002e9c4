"""Lower bound of seconds of an iteration + price x GPU-seconds, over all plans.

For a chain that is a shortest path. Between a fork and its join every branch gets all the GPUs: the block
then takes as long as its slowest branch, and the others only cost their GPU-seconds.
"""

import numpy as np

from deeppool.base import cancellation
from deeppool.costs.communication import CROSS_NODE, SAME_NODE, SAME_START
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import INPUT, NonSeriesParallel, ParallelBlock, Series


class LagrangianBound:
    """Lower bounds of a cost table at one price of a GPU-second."""

    def __init__(self, costs: CostTable, price: float) -> None:
        """Takes the price in seconds per GPU-second."""
        self.costs = costs
        self.own = costs.compute + costs.sync
        work = price * np.array(costs.gpu_counts, dtype=float)
        self._whole, self._work = 1 + work, work

    def least(self, tree: Series) -> float:
        """Returns the least seconds + price x GPU-seconds."""
        cancellation.check()
        return float(self._series(tree, INPUT, self._whole).min())

    def _series(self, series: Series, fork: int, weight: Floats) -> Floats:
        """Returns (before, last) costs of a series; every second on a GPU count weighs ``weight``."""
        total: Floats | None = None
        for layer, block in zip(series.layers, series.blocks, strict=True):
            step = self._between(block, fork, layer, weight) + self.own[layer] * weight
            total = step if total is None else (total[:, :, None] + step[None]).min(axis=1)
            fork = layer
        assert total is not None
        return total

    def _between(self, block: ParallelBlock | NonSeriesParallel | None, fork: int, join: int, weight: Floats) -> Floats:
        """Returns (fork, join) costs of what lies between them and of the transfers into the join."""
        nothing = np.zeros((1 if fork == INPUT else len(weight), len(weight)))
        if isinstance(block, NonSeriesParallel):
            # Transfers inside a region and out of it count for nothing here.
            return nothing + sum(float((self.own[layer] * weight).min()) for layer in block.layers)
        direct = self._move(fork, join) * weight if block is None or block.direct else nothing
        return direct if block is None else direct + self._branches(block, fork, join, weight)

    def _branches(self, block: ParallelBlock, fork: int, join: int, weight: Floats) -> Floats:
        work = [self._to_join(branch, fork, join, self._work) for branch in block.branches]
        if weight is self._work:
            return np.asarray(np.sum(work, axis=0))
        whole = [self._to_join(branch, fork, join, weight) for branch in block.branches]
        slowest = np.max([a - b for a, b in zip(whole, work, strict=True)], axis=0)
        return np.asarray(slowest + np.sum(work, axis=0))

    def _to_join(self, branch: Series, fork: int, join: int, weight: Floats) -> Floats:
        last = branch.layers[-1]
        moved = np.zeros((len(weight), len(weight)))
        if last in self.costs.graph.layers[join].predecessors:
            moved = self._move(last, join) * weight
        if branch.tail is not None:
            moved = moved + self._branches(branch.tail, last, join, weight)
        ways = self._series(branch, fork, weight)
        to_join: Floats = (ways[:, :, None] + moved[None]).min(axis=1)
        return to_join

    def _move(self, source: int, layer: int) -> Floats:
        if source == INPUT:
            return np.zeros((1, len(self.own[0])))
        consumer = self.costs.graph.layers[layer]
        size = consumer.input_bytes[consumer.predecessors.index(source)]
        # Where links between nodes are the faster ones, moving away is cheaper than staying.
        home, near, far = (self.costs.comm(size, place) for place in (SAME_START, SAME_NODE, CROSS_NODE))
        return np.minimum(np.minimum(home, near), far)

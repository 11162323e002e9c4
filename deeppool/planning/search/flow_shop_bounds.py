"""What the layers that are yet to come add at least to a way of the flow shop.

A layer adds forward + backward to the seconds and takes at most backward - sync off the lag; transfers take at most
half of what they add. The iteration takes seconds + lag, so it takes seconds + share x lag or more for any share, and
the least of that is a shortest path through the layers to come, from each option of the next one:

    seconds + share x lag + sum of forward + (1 - share) backward + share sync of the layers to come

The largest of these, over some shares, is what a way comes to at least.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deeppool.costs.table import CostTable, Floats
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.pareto import Integers

SHARES = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
"""Weights of the lag."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundedBlock:
    """Branches that run side by side, with their join, by what no way through them can beat."""

    fork: int
    """Layer before them, or INPUT."""
    seconds: Floats
    """(fork, join) seconds of both passes."""
    lag: Floats
    """(fork, join) seconds that such a way adds to the lag; of one that takes longer both together are no less."""


class RestBounds:
    """What no way beats from each layer on, with its options of that layer."""

    def __init__(
        self,
        costs: CostTable,
        sync: Floats,
        backward: Sequence[int],
        prices: LimitedCosts,
        blocks: Mapping[int, tuple[BoundedBlock, int]],
    ) -> None:
        """Finds the shortest paths, from the last layer of the backward pass on.

        Args:
            costs: seconds.
            sync: (L, K) seconds that each layer's gradients add at least to the all-reduces.
            backward: layers in the order of the backward pass.
            prices: transfers, and which of them the limit permits.
            blocks: blocks with the positions of their forks, by their joins.
        """
        shares, computing = np.array(SHARES), costs.network.sync_computing
        self._weights: Floats = shares + (1 - shares) * computing
        """Per share the weight of the lag: of what is left to all-reduce, cores compute at least their share."""
        shares = shares[:, None, None]
        forward = costs.forward + costs.update[:, None]
        added = forward + (1 - shares) * costs.backward + self._weights[:, None, None] * sync
        added = np.where(prices.room >= 0, added, np.inf)
        self._rests: list[Floats] = [np.zeros((len(SHARES), 1))]
        """Per position (share, option) seconds + weight x lag."""
        for position, layer in reversed(list(enumerate(backward))):
            further = self._rests[0][:, :, None]
            if position + 1 < len(backward) and backward[position + 1] in costs.graph.layers[layer].predecessors:
                moved = prices.move(backward[position + 1], layer)
                further = further + (1 - shares / 2) * np.where(moved <= prices.room[layer], moved, np.inf)
            rest = added[:, layer] + further.min(axis=1)
            if layer in blocks:
                block, fork = blocks[layer]
                over = (block.seconds + shares * block.lag + self._rests[fork - position - 1][:, :, None]).min(axis=1)
                rest = np.minimum(rest, over + self._weights[:, None] * sync[layer])
            self._rests.insert(0, rest)

    def least(self, seconds: Floats, lag: Floats, position: int, options: Integers | None = None) -> Floats:
        """Returns (way,) seconds that ways come to at least from a position on.

        Args:
            seconds: of each way so far.
            lag: of each way so far.
            position: of the next layer.
            options: (way,) option of that layer; None: any.
        """
        rest = self._rests[position]
        rest = rest.min(axis=1, keepdims=True) if options is None else rest[:, options]
        found: Floats = (seconds + self._weights[:, None] * lag + rest).max(axis=0)
        return found

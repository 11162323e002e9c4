"""Tied parameters in the flow shop: one gradient of several layers, summed over the GPUs of all of them.

The sum waits for the backward of the first layer that uses the parameter. Until then a way remembers the options of
the others (see ``flow_shop_labels``). A small parameter, and one used in a block, counts for the first layer's GPUs
only.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from deeppool.costs.table import Floats
from deeppool.planning.search.flow_shop_labels import FlowShopLabels
from deeppool.planning.search.pareto import Integers

AllReduceTimes = Callable[[Integers, Integers], Floats]
"""Returns the seconds of all-reduces, from the options of their GPU counts, and from their bytes."""


class TiedParameters:
    """Parameters whose all-reduce depends on all layers that use them."""

    def __init__(
        self,
        sizes: Mapping[tuple[int, ...], int],
        alone: float,
        positions: Mapping[int, int],
        inside: Collection[int],
        times: AllReduceTimes,
    ) -> None:
        """Leaves out those that count for their first layer only.

        Args:
            sizes: bytes of each tied parameter, by the layers that use it.
            alone: bytes from which one shares no bucket.
            positions: position of each layer in the backward pass.
            inside: layers of blocks.
            times: seconds of all-reduces.
        """
        self.positions, self._times = positions, times
        self.users: dict[int, tuple[tuple[int, ...], int]] = {}
        """Layers that use a parameter and its bytes, by the first one."""
        for users, size in sizes.items():
            last = max(positions[x] for x in users) == positions[users[0]]
            if size >= alone and last and not set(inside).intersection(users):
                self.users[users[0]] = users, size
        self.kept: dict[int, int] = {}
        """Per layer whose option is needed longer than its own step, the layer until whose step it is."""
        for first in sorted(self.users, key=positions.__getitem__):
            self.kept.update(dict.fromkeys(self.users[first][0], first))

    def seconds(self, ways: FlowShopLabels, first: int) -> Floats:
        """Returns (way,) seconds of the all-reduce of a parameter, over the GPUs of the layers that are known."""
        users, size = self.users[first]
        known = [self._times(ways.option(user), np.array(size)) for user in users if user in ways.pending]
        return np.max(known, axis=0) if known else np.zeros(len(ways.seconds))

    def awaited(self, ways: FlowShopLabels, position: int) -> Floats:
        """Returns (way,) seconds that tied parameters add at least to the lag from a position on."""
        found = [self.seconds(ways, first) for first in self.users if self.positions[first] >= position]
        return np.sum(found, axis=0) if found else np.zeros(len(ways.seconds))

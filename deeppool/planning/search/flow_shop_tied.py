"""Tied parameters in the flow shop: one gradient of several layers, summed over the GPUs of all of them.

The sum waits for the backward of the first layer that uses the parameter. Until then a way remembers the options of
the others (see ``flow_shop_labels``); where one of them is in a block, those of the first layer count only.

Where another layer has more GPUs than the first one, the gradient shares no bucket. Else a small one does, which may
then be sent later than without it: these are two cases, of which each has a search of its own.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from deeppool.costs.table import Floats
from deeppool.planning.search.flow_shop_labels import FlowShopLabels
from deeppool.planning.search.pareto import Integers

AllReduceTimes = Callable[[Integers, Integers], Floats]
"""Returns the seconds of all-reduces, from the options of their GPU counts, and from their bytes."""
Tied = Mapping[tuple[int, ...], int]
"""Bytes of tied parameters, by the layers that use them."""


def cases_of(tied: Tied, gradient_bytes: Sequence[int], alone: float) -> Sequence[Tied]:
    """Returns, for each case that a search is for, the parameters that share no bucket; no case where there are many.

    Args:
        tied: all tied parameters.
        gradient_bytes: per layer; of tied parameters for the first one.
        alone: bytes from which a gradient shares no bucket.
    """
    others = {first: gradient_bytes[first] for first, *_ in tied}
    for users, size in tied.items():
        others[users[0]] -= size
    large = {users: size for users, size in tied.items() if size >= alone and not 0 < others[users[0]] < alone}
    return {0: [tied], 1: [large, tied]}.get(len(tied) - len(large), [])


class TiedParameters:
    """Parameters that share no bucket, whose all-reduce depends on all layers that use them."""

    def __init__(
        self, apart: Tied, count: int, positions: Mapping[int, int], inside: Collection[int], times: AllReduceTimes
    ) -> None:
        """Leaves out those that count for their first layer only.

        Args:
            apart: the parameters.
            count: number of options of each layer.
            positions: position of each layer in the backward pass.
            inside: layers of blocks.
            times: seconds of all-reduces.
        """
        self.positions = positions
        self.users: dict[int, tuple[tuple[int, ...], Floats]] = {}
        """Layers that use a parameter, and the (option,) seconds of its all-reduce, by the first one."""
        for users, size in apart.items():
            last = max(positions[x] for x in users) == positions[users[0]]
            if last and not set(inside).intersection(users):
                self.users[users[0]] = users, times(np.arange(count), np.array(size))
        self.kept: dict[int, int] = {}
        """Per layer whose option is needed longer than its own step, the layer until whose step it is."""
        for first in sorted(self.users, key=positions.__getitem__):
            self.kept.update(dict.fromkeys(self.users[first][0], first))

    def seconds(self, ways: FlowShopLabels, first: int) -> Floats:
        """Returns (way,) seconds of the all-reduce of a parameter at least, over the GPUs of the layers that are known.

        Those of the first layer alone count where none has more: it may take longer over fewer.
        """
        users, times = self.users[first]
        known = [ways.option(user) for user in users if user in ways.pending]
        if not known:
            return np.zeros(len(ways.seconds))
        widest = np.max(known, axis=0)
        if first not in ways.pending:
            found: Floats = np.minimum.accumulate(times[::-1])[::-1][widest]
            return found
        own = ways.option(first)
        return np.where(widest > own, np.max(times[known], axis=0), times[own])

    def awaited(self, ways: FlowShopLabels, position: int) -> Floats:
        """Returns (way,) seconds that tied parameters add at least to the lag from a position on."""
        found = [self.seconds(ways, first) for first in self.users if self.positions[first] >= position]
        return np.sum(found, axis=0) if found else np.zeros(len(ways.seconds))

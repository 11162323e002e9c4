"""Ways through the last layers of a model, as the flow shop adds one layer after another to them (see ``flow_shop``).

Layers are chosen from the last one to the first, so a way knows the options of layers before it that its own layers
read: these are *pending*. All of them are one number, of which each is a digit, the first layer the lowest:

    pending   layer 2, layer 5        of 4 options each
    options   1 + 4 x 3 = 13          layer 2 takes option 1, layer 5 option 3
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from deeppool.costs.table import Floats
from deeppool.planning.search.pareto import Integers

NO_BUCKET, SENT, OPEN = range(3)
"""No bucket is filling; one was sent, so the stage must end; OPEN + n: one is filling since the n-th layer backward."""


class TooManyOptionsError(Exception):
    """Raised where the options of layers that are read later are too many to number."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowShopLabels:
    """Ways through the layers from one on to the last."""

    count: int
    """Number of options of each layer."""
    buckets: int
    """Number that no bucket reaches."""
    pending: tuple[int, ...]
    """Earlier layers whose options are chosen, those that the layers so far read; ascending."""
    options: Integers
    """(way,) their options as one number."""
    bucket: Integers
    """(way,) NO_BUCKET, SENT, or since when one is filling."""
    seconds: Floats
    """(way,) seconds of layers and transfers."""
    lag: Floats
    """(way,) seconds from the end of the backward pass so far to that of its all-reduces."""
    parent: Integers
    """(way,) index of the way that it continues."""

    @property
    def ends(self) -> Floats:
        """(way,) seconds until the last all-reduce has ended."""
        return self.seconds + self.lag

    def option(self, layer: int) -> Integers:
        """Returns (way,) the option of a pending layer."""
        found: Integers = self.options // self.count ** self.pending.index(layer) % self.count
        return found

    def keep(self, rows: Integers) -> "FlowShopLabels":
        """Returns some of the ways."""
        numbers = self.options[rows], self.bucket[rows]
        return FlowShopLabels(
            self.count, self.buckets, self.pending, *numbers, self.seconds[rows], self.lag[rows], self.parent[rows]
        )

    def with_options_of(self, layer: int) -> "FlowShopLabels":
        """Returns every way with each option of a layer that is not pending yet.

        Raises:
            TooManyOptionsError: the options are too many to number.
        """
        pending = tuple(sorted((*self.pending, layer)))
        if self.count ** len(pending) * self.buckets > np.iinfo(np.intp).max:
            raise TooManyOptionsError
        digit, number = self.count ** pending.index(layer), len(self.seconds)
        every = self.keep(np.tile(np.arange(number), self.count))
        chosen = np.repeat(np.arange(self.count), number)
        above = every.options // digit * digit
        options = above * self.count + chosen * digit + every.options - above
        return replace(every, pending=pending, options=options)

    def without(self, layer: int) -> "FlowShopLabels":
        """Returns the ways without the option of a layer that nothing else reads."""
        digit = self.count ** self.pending.index(layer)
        options = self.options % digit + self.options // (digit * self.count) * digit
        return replace(self, pending=tuple(x for x in self.pending if x != layer), options=options)


def joined(parts: Sequence[FlowShopLabels]) -> FlowShopLabels:
    """Returns the ways of all parts, which have the same pending layers."""
    first, *others = parts
    if not others:
        return first
    return replace(
        first,
        options=np.concatenate([part.options for part in parts]),
        bucket=np.concatenate([part.bucket for part in parts]),
        seconds=np.concatenate([part.seconds for part in parts]),
        lag=np.concatenate([part.lag for part in parts]),
        parent=np.concatenate([part.parent for part in parts]),
    )

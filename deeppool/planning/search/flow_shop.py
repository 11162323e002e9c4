"""The fastest plan of layers in sequence whose all-reduces overlap the backward pass: a flow shop.

Where no branches run side by side, every set of GPUs starts at the same GPU, whose channel all all-reduces
pass in the order of the backward pass. Layers and all-reduces are then the two machines of a flow shop with
a given order of jobs. From the last layer to the first, in the order of the backward pass, only two numbers
so far matter: the seconds that its layers and transfers take, in both passes, and the
*lag*, by which the end of its all-reduces comes after that of its backward.

    a layer        seconds + forward + backward      lag = max(lag - backward, 0) + all-reduce
    its transfers  seconds + reshard                 lag = max(lag - reshard / 2, 0)

Where cores compute a share of an all-reduce, a layer or a transfer of x seconds hides y = min(lag, x / (1 - share)) of
the lag, which is then lag - y, and takes share x y longer.

Small gradients of a *stage*, layers that follow one another on the same GPUs, share a bucket. A way remembers at
which layer its bucket began to fill. At each layer with a small gradient it either leaves the bucket open, or sends
it; then the stage must end before the next such layer, as a run sends a bucket that is not full only at the last:

    backward   layer 5 (small) | layer 4 | layer 3 (small) | layer 2 on other GPUs
    bucket     5, open         | open    | 3 and 5, sent   |

The iteration takes seconds + lag. All steps keep the order of two lags, so of two ways with equal GPU
counts and buckets where they go on, one with more seconds and no less lag can be dropped: Pareto fronts, as for
shortest paths with two costs (``flow_shop_labels``). What the layers to come add at least (``flow_shop_bounds``) rules
out ways that cannot be the fastest. Exact, unless there are so many ways that the search goes on with the most
promising ones only (a beam search); the least that the others add up to then bounds all plans, and where that is far
from the plan the search is made again with more ways.

Branches that run side by side are bounded: a way may go from a join to its fork over the whole block, by what no way
through it takes less than with at least two groups of GPUs. Of their all-reduces those count that are on GPU 0, as
all others are, beyond what the whole backward pass of the block hides; and a bucket does not go on through them, as in
a run. What is found then is a bound of all plans.

A tied parameter is summed over the GPUs of all layers that use it (``flow_shop_tied``).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from deeppool.base import cancellation
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import INPUT
from deeppool.planning.search.flow_shop_bounds import BoundedBlock, RestBounds
from deeppool.planning.search.flow_shop_labels import NO_BUCKET, OPEN, SENT, FlowShopLabels, joined
from deeppool.planning.search.flow_shop_tied import Tied, TiedParameters, cases_of
from deeppool.planning.search.limited_costs import ROUNDING, LimitedCosts
from deeppool.planning.search.pareto import Integers, efficient_rows

MOST_WAYS = 4_000, 32_000
"""Most ways to go on with at any one layer, those that can become fastest; the second where the first are too few."""
READ_WAYS = 7
"""So many times as many ways at most with all options of a layer that is read."""
NEAR = 1.01
"""What is within this factor of what was dropped is not searched with more ways."""


def fastest_in_sequence(
    costs: CostTable,
    order: Sequence[int],
    limit: float | None,
    at_most: float,
    blocks: Mapping[int, BoundedBlock] = MappingProxyType({}),
    known: float = 0.0,
) -> tuple[tuple[int, ...] | None, float]:
    """Returns the options of least iteration time for layers in sequence, all-reduces overlapping.

    Args:
        costs: seconds.
        order: order of the layers in a forward pass.
        limit: limit on each layer's amplification, its all-reduce counted in full; None: no limit.
        at_most: seconds of a plan that is known.
        blocks: blocks whose branches may run side by side, by their joins.
        known: seconds that no plan beats.

    Returns:
        Per layer the index of its GPU count, None where none faster than the known plan was found, or with blocks; and
        the seconds that no plan in sequence or with these blocks beats.

    Raises:
        TooManyOptionsError: so many layers are read later that their options cannot be numbered.
    """
    tied, options, found = costs.graph.tied, None, []
    cases = cases_of(tied, costs.graph.gradient_bytes, costs.buckets.largest_joined)
    for apart in cases or [tied]:
        proved = known
        for most in MOST_WAYS:
            search = _FlowShop(costs, order, limit, blocks, apart, most)
            history = search.run(at_most)
            ends = history[-1].ends
            if len(ends):
                at_most = float(ends.min())
                options = None if blocks else search.trace(history, int(ends.argmin()))
            # The ways found are ways whatever is dropped, so more of them prove no more than these take.
            proved = max(proved, min(at_most, search.dropped))
            if at_most <= max(proved, search.dropped) * NEAR:
                break
        found.append(proved)
    return options, min(found) if cases else known


class _FlowShop:
    """Adds one layer after another to ways, the last one first."""

    def __init__(
        self,
        costs: CostTable,
        order: Sequence[int],
        limit: float | None,
        blocks: Mapping[int, BoundedBlock],
        apart: Tied,
        most: int,
    ) -> None:
        self.costs, self.most = costs, most
        self.dropped = math.inf
        """Seconds that no way beats with which the search did not go on."""
        self.prices = LimitedCosts(costs, limit)
        self.backward = list(reversed(order))
        self.count, self.computing = len(costs.gpu_counts), costs.network.sync_computing
        self.forward: Floats = costs.forward + costs.update[:, None]
        """(L, K) seconds of the forward and of the update, which all layers in sequence have on one GPU."""
        sizes = np.array(costs.graph.gradient_bytes)
        for users, size in apart.items():
            sizes[users[0]] -= size
        sizes = sizes[self.backward]
        self.small = np.where(sizes < costs.buckets.largest_joined, sizes, 0)
        """(position,) bytes of gradients that share a bucket."""
        self.filled: Integers = np.append(0, np.cumsum(self.small))
        """Bytes of such gradients before each layer backward."""
        positions = {layer: position for position, layer in enumerate(self.backward)}
        self.blocks = {join: (block, positions.get(block.fork, len(order))) for join, block in blocks.items()}
        """Blocks with the positions of their forks, by their joins."""
        inside = {x for join, (_, fork) in self.blocks.items() for x in self.backward[positions[join] : fork]}
        self.tied = TiedParameters(apart, self.count, positions, inside, self._seconds)
        counted = costs.least_sync.copy()
        counted[list(self.tied.users)] = 0  # counted as awaited
        self.bounds = RestBounds(costs, counted, self.backward, self.prices, self.blocks)

    def run(self, at_most: float) -> list[FlowShopLabels]:
        """Returns the ways before each layer backward, and those through all layers; of less than ``at_most``."""
        options, zeros = np.arange(self.count), np.zeros(self.count)
        start = FlowShopLabels(
            self.count,
            OPEN + len(self.backward),
            (self.backward[0],),
            options,
            options * 0 + NO_BUCKET,
            zeros,
            zeros,
            options,
        )
        nothing = start.keep(options[:0])
        arriving: list[list[FlowShopLabels]] = [[start], *([] for _ in self.backward)]
        history = []
        for position, layer in enumerate(self.backward):
            cancellation.check()
            ways = joined(arriving[position] or [nothing])
            history.append(ways)
            if not len(ways.seconds):
                continue
            arriving[position + 1].append(self._efficient(self._past(ways, position), position + 1, at_most))
            if layer in self.blocks:
                _, fork = self.blocks[layer]
                arriving[fork].append(self._efficient(self._over(ways, position), fork, at_most))
        return [*history, joined(arriving[-1] or [nothing])]

    def trace(self, history: Sequence[FlowShopLabels], way: int) -> tuple[int, ...]:
        """Returns the options of all layers of one of the ways that :meth:`run` ends with."""
        options = dict[int, int]()
        for later, ways in itertools.pairwise(reversed(history)):
            way = int(later.parent[way])
            options.update((layer, int(ways.option(layer)[way])) for layer in ways.pending)
        return tuple(option for _, option in sorted(options.items()))

    def _efficient(self, ways: FlowShopLabels, position: int, at_most: float) -> FlowShopLabels:
        """Returns the ways that go on at a position and may become faster than ``at_most``."""
        lag, options = ways.lag + self.tied.awaited(ways, position), None
        if position < len(self.backward):
            options = ways.option(self.backward[position])
            # An open bucket stays on the GPUs of the next layer, and adds at least its bytes.
            filled = self.filled[position] - self.filled[np.maximum(ways.bucket - OPEN, 0)]
            lag = lag + np.where(ways.bucket < OPEN, 0, filled) * self.costs.least_sync_per_byte[options]
        least = self.bounds.least(ways.seconds, lag, position, options)
        rows = np.nonzero(least < at_most * (1 - ROUNDING))[0]
        ways, least = ways.keep(rows), least[rows]
        rows = efficient_rows(ways.options * ways.buckets + ways.bucket, ways.seconds, ways.lag)
        return self._few(ways.keep(rows), least[rows], self.most)

    def _few(self, ways: FlowShopLabels, least: Floats, most: int) -> FlowShopLabels:
        """Returns at most so many ways: those that add up to least; notes what no other one beats."""
        if len(least) <= most:
            return ways
        ascending = np.argsort(least)
        self.dropped = min(self.dropped, float(least[ascending[most]]))
        return ways.keep(ascending[:most])

    def _past(self, ways: FlowShopLabels, position: int) -> FlowShopLabels:
        """Returns the ways with a layer and its transfers, for all options of what it reads."""
        layer, costs = self.backward[position], self.costs
        here, sources = ways.option(layer), self.costs.graph.layers[layer].predecessors
        backward = costs.backward[layer, here]
        beside = _beside(ways.lag, backward, self.computing)
        seconds = ways.seconds + self.forward[layer, here] + backward + self.computing * beside
        ended = replace(ways, seconds=seconds, lag=ways.lag - beside, parent=np.arange(len(here)))
        ways = self._reading(self._all_reduced(ended, position), position + 1, sources)
        here = ways.option(layer)
        moved = np.zeros(len(here))
        for source in sources:
            moved = moved + self.prices.move(source, layer)[ways.option(source), here]
        beside = _beside(ways.lag, moved / 2, self.computing)
        seconds = ways.seconds + moved + self.computing * beside
        same = np.zeros(len(here), dtype=bool)
        if position + 1 < len(self.backward):
            same = here == ways.option(self.backward[position + 1])
        # A bucket stays open only on the same GPUs, and one that was sent is the last there.
        permitted = (moved <= self.prices.room[layer, here]) & (same | (ways.bucket < OPEN))
        bucket = np.where(same, ways.bucket, NO_BUCKET)
        ways = replace(ways, seconds=seconds, lag=ways.lag - beside, bucket=bucket)
        ways = ways.keep(np.nonzero(permitted)[0])
        for done in [each for each in ways.pending if self.tied.kept.get(each, each) == layer]:
            ways = ways.without(done)
        return ways

    def _over(self, ways: FlowShopLabels, position: int) -> FlowShopLabels:
        """Returns the ways with a whole block side by side, for all options of its fork.

        Its join's all-reduce counts as beside all of its backward pass. A way that takes longer in that pass ends no
        earlier: what it takes off the lag it adds to the seconds.
        """
        join = self.backward[position]
        block, position_of_fork = self.blocks[join]
        ways = self._all_reduced(ways, position)
        ways = ways.keep(np.nonzero(ways.bucket < OPEN)[0])
        ways = self._reading(ways, position_of_fork, () if block.fork == INPUT else (block.fork,))
        here = ways.option(join)
        fork = here * 0 if block.fork == INPUT else ways.option(block.fork)
        seconds, lag = ways.seconds + block.seconds[fork, here], np.maximum(ways.lag + block.lag[fork, here], 0)
        ways = replace(ways, bucket=np.full(len(here), NO_BUCKET), seconds=seconds, lag=lag)
        return ways.without(join)

    def _all_reduced(self, ways: FlowShopLabels, position: int) -> FlowShopLabels:
        """Returns the ways with the all-reduces that start after the backward of a layer, for all that may be."""
        layer = self.backward[position]
        if not self.small[position]:
            seconds = self.costs.least_sync[layer, ways.option(layer)]
            if layer in self.tied.users:
                seconds = np.maximum(seconds, self.tied.seconds(ways, layer))
            return replace(ways, lag=ways.lag + seconds)
        ways = ways.keep(np.nonzero(ways.bucket != SENT)[0])
        if layer in self.tied.users:
            ways = replace(ways, lag=ways.lag + self.tied.seconds(ways, layer))
        here = ways.option(layer)
        begun = np.where(ways.bucket < OPEN, position, ways.bucket - OPEN)
        filled = self.filled[position + 1] - self.filled[begun]
        ended = (filled >= self.costs.buckets.size) | (here == 0)
        sent = replace(ways, lag=ways.lag + self._seconds(here, filled), bucket=np.where(ended, NO_BUCKET, SENT))
        return joined([sent, replace(ways, bucket=begun + OPEN).keep(np.nonzero(~ended)[0])])

    def _seconds(self, options: Integers, filled: Integers) -> Floats:
        """Returns the seconds of all-reduces of some bytes on the GPUs of some options."""
        counts, time = self.costs.gpu_counts, self.costs.network.all_reduce_time
        kinds, which = np.unique(filled * self.count + options, return_inverse=True)
        sizes, found = np.divmod(kinds, self.count)
        seconds: Floats = np.array(
            [time(counts[x], size) for x, size in zip(found.tolist(), sizes.tolist(), strict=True)]
        )
        return seconds[which]

    def _reading(self, ways: FlowShopLabels, position: int, sources: Sequence[int]) -> FlowShopLabels:
        """Returns the ways with each option of the layers that are read, before they go on at a position."""
        for source in sources:
            if source in ways.pending:
                continue
            least = self.bounds.least(ways.seconds, ways.lag + self.tied.awaited(ways, position), position)
            ways = self._few(ways, least, READ_WAYS * self.most // self.count).with_options_of(source)
        return ways


def _beside(lag: Floats, seconds: Floats, computing: float) -> Floats:
    """Returns the seconds of the lag that pass beside what takes ``seconds`` by itself."""
    if computing == 1:
        return np.where(seconds > 0, lag, 0.0)
    passed: Floats = np.minimum(lag, seconds / (1 - computing))
    return passed

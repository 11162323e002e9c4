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
shortest paths with two costs. Exact, unless there are so many ways that the search goes on with the most promising
ones only (a beam search); the least that the others add up to then bounds all plans.

Branches that run side by side are bounded: a way may go from a join to its fork over the whole block, by what no way
through it takes less than with at least two groups of GPUs. Their all-reduces count for nothing there, and a bucket
does not go on through them, as in a run. What is found then is a bound of all plans.

A tied parameter is summed over the GPUs of all layers that use it, after the backward of the first one: a way remembers
the options of the others until then. A small one, and one used in a block, counts for the first layer's GPUs only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deeppool.base import cancellation
from deeppool.collectives.buckets import ALONE_BYTES, BUCKET_BYTES, LARGEST_BUCKET
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import INPUT
from deeppool.planning.search.limited_costs import ROUNDING, LimitedCosts
from deeppool.planning.search.pareto import Integers, efficient_rows

MOST_WAYS = 4_000
"""Most ways to go on with at any one layer: those that can become fastest."""
MOST_READ = 28_000
"""Most ways with all options of a layer that is read."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Weights of the lag in the bounds by which labels are dropped."""
NO_BUCKET, SENT, OPEN = range(3)
"""No bucket is filling; one was sent, so the stage must end; OPEN + n: one is filling since the n-th layer backward."""


class TooManyOptionsError(Exception):
    """Raised where the options of layers that are read later are too many to number."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundedBlock:
    """Branches that run side by side, with their join, by what no way through them can beat."""

    fork: int
    """Layer before them, or INPUT."""
    forward: Floats
    """(fork, join) seconds of the forward pass."""
    backward: Floats
    """(fork, join) seconds of the backward pass of a way whose forward pass takes no longer than that."""


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """Ways through the layers from one on to the last; none with the same options and bucket beats another one."""

    pending: tuple[int, ...]
    """Earlier layers whose options are chosen, those that the layers so far read; ascending."""
    options: Integers
    """(way,) their options as one number, that of the first pending layer as the lowest digit."""
    bucket: Integers
    """(way,) NO_BUCKET, SENT, or since when one is filling."""
    seconds: Floats
    lag: Floats
    parent: Integers
    """Index of the way that each way continues."""

    def keep(self, rows: Integers) -> "_Labels":
        """Returns some of the ways."""
        numbers = self.options[rows], self.bucket[rows]
        return _Labels(self.pending, *numbers, self.seconds[rows], self.lag[rows], self.parent[rows])


def fastest_in_sequence(
    costs: CostTable, sync: Floats, order: Sequence[int], limit: float | None, at_most: float
) -> tuple[tuple[int, ...] | None, float]:
    """Returns the options of least iteration time for layers in sequence, all-reduces overlapping.

    Args:
        costs: seconds.
        sync: (L, K) seconds that each layer's gradients add at least to the all-reduces.
        order: order of the layers in a forward pass.
        limit: limit on each layer's amplification, its all-reduce counted in full; None: no limit.
        at_most: seconds of a plan that is known.

    Returns:
        Per layer the index of its GPU count, None where none faster than the known plan was found; and the seconds
        that no plan in sequence beats.

    Raises:
        TooManyOptionsError: so many layers are read later that their options cannot be numbered.
    """
    search = _FlowShop(costs, sync, order, limit, {})
    *history, last = search.run(at_most)
    ends = last.seconds + last.lag
    least = float(ends.min(initial=at_most))
    if not len(ends):
        return None, min(least, search.dropped)
    way, options = int(ends.argmin()), dict[int, int]()
    for labels, following in zip(reversed(history), [last, *reversed(history)], strict=False):
        way = int(following.parent[way])
        options.update((layer, int(search.option(labels, layer)[way])) for layer in labels.pending)
    return tuple(option for _, option in sorted(options.items())), min(least, search.dropped)


def least_with_blocks(
    costs: CostTable,
    sync: Floats,
    order: Sequence[int],
    limit: float | None,
    at_most: float,
    blocks: Mapping[int, BoundedBlock],
) -> float:
    """Returns seconds that no plan beats where the branches of some blocks may run side by side; ``at_most`` at most.

    Args:
        costs: see :func:`fastest_in_sequence`, as for what follows.
        sync: see there.
        order: see there.
        limit: see there.
        at_most: see there.
        blocks: the blocks, by their joins.

    Raises:
        TooManyOptionsError: see there.
    """
    search = _FlowShop(costs, sync, order, limit, blocks)
    *_, last = search.run(at_most)
    return min(float((last.seconds + last.lag).min(initial=at_most)), search.dropped)


class _FlowShop:
    """Adds one layer after another to ways, the last one first."""

    def __init__(
        self,
        costs: CostTable,
        sync: Floats,
        order: Sequence[int],
        limit: float | None,
        blocks: Mapping[int, BoundedBlock],
    ) -> None:
        self.costs, self.sync, self.blocks = costs, sync, blocks
        self.dropped = math.inf
        """Seconds that no way beats with which the search did not go on."""
        self.prices = LimitedCosts(costs, limit)
        self.backward = list(reversed(order))
        self.count, self.computing = len(costs.gpu_counts), costs.network.sync_computing
        self.forward: Floats = costs.forward + costs.update[:, None]
        """(L, K) seconds of the forward and of the update, which all layers in sequence have on one GPU."""
        per_byte = [costs.network.least_seconds_per_byte(count, LARGEST_BUCKET) for count in costs.gpu_counts]
        self.per_byte: Floats = np.array(per_byte)
        sizes = np.array(costs.graph.gradient_bytes)[self.backward]
        self.small = np.where(sizes < ALONE_BYTES, sizes, 0)
        """(position,) bytes of gradients that share a bucket."""
        self.filled: Integers = np.append(0, np.cumsum(self.small))
        """Bytes of such gradients before each layer backward."""
        self.positions = positions = {layer: position for position, layer in enumerate(self.backward)}
        self.forks = {join: positions.get(block.fork, len(order)) for join, block in blocks.items()}
        self.tied: dict[int, tuple[tuple[int, ...], int]] = {}
        """Users and bytes of tied parameters whose all-reduce depends on all of them, by the first user."""
        inside = {x for join, fork in self.forks.items() for x in self.backward[positions[join] : fork]}
        for users, size in costs.graph.tied.items():
            last = max(positions[x] for x in users) == positions[users[0]]
            if size >= ALONE_BYTES and last and not inside.intersection(users):
                self.tied[users[0]] = users, size
        self.kept: dict[int, int] = {}
        """Per layer whose option is needed longer than its own step, the layer until whose step it is."""
        for first in sorted(self.tied, key=positions.__getitem__):
            self.kept.update(dict.fromkeys(self.tied[first][0], first))
        shares = np.array(SHARES)
        self.weights: Floats = shares + (1 - shares) * self.computing
        """Per share the weight of the lag: of what is left to all-reduce, cores compute at least their share."""
        self.rests = self._rests()

    def run(self, at_most: float) -> list[_Labels]:
        """Returns the ways before each layer backward, and those through all layers; of less than ``at_most``."""
        number, start = len(self.backward), np.zeros(self.count)
        bucket, options = np.full(self.count, NO_BUCKET), np.arange(self.count)
        arriving: list[list[_Labels]] = [[] for _ in range(number + 1)]
        arriving[0].append(_Labels((self.backward[0],), options, bucket, start, start, options))
        history = []
        for position, layer in enumerate(self.backward):
            cancellation.check()
            labels = _joined(arriving[position])
            history.append(labels)
            if not len(labels.seconds):
                continue
            arriving[position + 1].append(self._efficient(self._past(labels, position), position + 1, at_most))
            if layer in self.blocks:
                fork = self.forks[layer]
                arriving[fork].append(self._efficient(self._over(labels, position), fork, at_most))
        return [*history, _joined(arriving[number])]

    def option(self, labels: _Labels, layer: int) -> Integers:
        """Returns (way,) the option of a pending layer."""
        found: Integers = labels.options // self.count ** labels.pending.index(layer) % self.count
        return found

    def _rests(self) -> list[Floats]:
        """Returns, per position, (share, option) seconds + weight x lag that the layers from there on add at least.

        A layer adds forward + backward to the seconds and takes at most backward - sync off the lag; transfers
        take at most half of what they add. And the iteration takes seconds + lag, so seconds + share x lag or more.
        """
        shares, sync = np.array(SHARES)[:, None, None], self.sync.copy()
        sync[list(self.tied)] = 0  # counted by _awaited
        added = self.forward + (1 - shares) * self.costs.backward + self.weights[:, None, None] * sync
        added = np.where(self.prices.room >= 0, added, np.inf)
        rests: list[Floats] = [np.zeros((len(SHARES), 1))]
        for position, layer in reversed(list(enumerate(self.backward))):
            further = rests[0][:, :, None]
            if position + 1 < len(self.backward) and self.backward[position + 1] in self._sources(layer):
                moved = self.prices.move(self.backward[position + 1], layer)
                further = further + (1 - shares / 2) * np.where(moved <= self.prices.room[layer], moved, np.inf)
            rest = added[:, layer] + further.min(axis=1)
            if layer in self.blocks:
                block, after = self.blocks[layer], rests[self.forks[layer] - position - 1]
                over = block.forward + (1 - shares) * block.backward + after[:, :, None]
                rest = np.minimum(rest, over.min(axis=1))
            rests.insert(0, rest)
        return rests

    def _sources(self, layer: int) -> tuple[int, ...]:
        return self.costs.graph.layers[layer].predecessors

    def _awaited(self, labels: _Labels, position: int) -> Floats:
        """Returns (way,) seconds that tied parameters add at least to the lag from a position on."""
        seconds = np.zeros(len(labels.seconds))
        for first in self.tied:
            if self.positions[first] >= position:
                seconds += self._tied_seconds(labels, first)
        return seconds

    def _tied_seconds(self, labels: _Labels, first: int) -> Floats:
        """Returns (way,) seconds of the all-reduce of a tied parameter over the GPUs of the users that are known."""
        users, size = self.tied[first]
        known = [self.option(labels, user) for user in users if user in labels.pending]
        seconds = [self._seconds(options, np.array(size)) for options in known]
        return np.max(seconds, axis=0) if seconds else np.zeros(len(labels.seconds))

    def _efficient(self, labels: _Labels, position: int, at_most: float) -> _Labels:
        """Returns the ways that go on at a position and may become faster than ``at_most``."""
        lag, rest = labels.lag + self._awaited(labels, position), self.rests[position]
        if position < len(self.backward):
            option = self.option(labels, self.backward[position])
            # An open bucket stays on the GPUs of the next layer, and adds at least its bytes.
            filled = self.filled[position] - self.filled[np.maximum(labels.bucket - OPEN, 0)]
            lag, rest = lag + np.where(labels.bucket < OPEN, 0, filled) * self.per_byte[option], rest[:, option]
        least = (labels.seconds + self.weights[:, None] * lag + rest).max(axis=0)
        rows = np.nonzero(least < at_most * (1 - ROUNDING))[0]
        labels, least = labels.keep(rows), least[rows]
        key = labels.options * (OPEN + len(self.backward)) + labels.bucket
        rows = efficient_rows(key, labels.seconds, labels.lag)
        return self._few(labels.keep(rows), least[rows], MOST_WAYS)

    def _few(self, labels: _Labels, least: Floats, most: int) -> _Labels:
        """Returns at most so many ways: those that add up to least; notes what no other one beats."""
        if len(least) <= most:
            return labels
        ascending = np.argsort(least)
        self.dropped = min(self.dropped, float(least[ascending[most]]))
        return labels.keep(ascending[:most])

    def _past(self, labels: _Labels, position: int) -> _Labels:
        """Returns the ways with a layer and its transfers, for all options of what it reads."""
        layer, costs = self.backward[position], self.costs
        here, sources = self.option(labels, layer), self._sources(layer)
        backward = costs.backward[layer, here]
        beside = _beside(labels.lag, backward, self.computing)
        seconds = labels.seconds + self.forward[layer, here] + backward + self.computing * beside
        ended = replace(labels, seconds=seconds, lag=labels.lag - beside, parent=np.arange(len(here)))
        labels = self._reading(self._all_reduced(ended, position), position + 1, sources)
        here = self.option(labels, layer)
        moved = np.zeros(len(here))
        for source in sources:
            moved = moved + self.prices.move(source, layer)[self.option(labels, source), here]
        beside = _beside(labels.lag, moved / 2, self.computing)
        seconds = labels.seconds + moved + self.computing * beside
        same = np.zeros(len(here), dtype=bool)
        if position + 1 < len(self.backward):
            same = here == self.option(labels, self.backward[position + 1])
        # A bucket stays open only on the same GPUs, and one that was sent is the last there.
        permitted = (moved <= self.prices.room[layer, here]) & (same | (labels.bucket < OPEN))
        bucket = np.where(same, labels.bucket, NO_BUCKET)
        labels = replace(labels, seconds=seconds, lag=labels.lag - beside, bucket=bucket)
        labels = labels.keep(np.nonzero(permitted)[0])
        for done in [each for each in labels.pending if self.kept.get(each, each) == layer]:
            labels = self._without(labels, done)
        return labels

    def _over(self, labels: _Labels, position: int) -> _Labels:
        """Returns the ways with a whole block side by side, for all options of its fork.

        Its join's all-reduce counts as beside all of its backward pass. A way that takes longer in that pass ends no
        earlier: what it takes off the lag it adds to the seconds.
        """
        join = self.backward[position]
        block = self.blocks[join]
        labels = self._all_reduced(labels, position)
        labels = labels.keep(np.nonzero(labels.bucket < OPEN)[0])
        labels = self._reading(labels, self.forks[join], () if block.fork == INPUT else (block.fork,))
        here = self.option(labels, join)
        fork = here * 0 if block.fork == INPUT else self.option(labels, block.fork)
        forward, backward = block.forward[fork, here], block.backward[fork, here]
        seconds, lag = labels.seconds + forward + backward, np.maximum(labels.lag - backward, 0)
        labels = replace(labels, bucket=np.full(len(here), NO_BUCKET), seconds=seconds, lag=lag)
        return self._without(labels, join)

    def _all_reduced(self, labels: _Labels, position: int) -> _Labels:
        """Returns the ways with the all-reduces that start after the backward of a layer, for all that may be."""
        layer = self.backward[position]
        if not self.small[position]:
            seconds = self.sync[layer, self.option(labels, layer)]
            if layer in self.tied:
                seconds = np.maximum(seconds, self._tied_seconds(labels, layer))
            return replace(labels, lag=labels.lag + seconds)
        labels = labels.keep(np.nonzero(labels.bucket != SENT)[0])
        here = self.option(labels, layer)
        begun = np.where(labels.bucket < OPEN, position, labels.bucket - OPEN)
        filled = self.filled[position + 1] - self.filled[begun]
        ended = (filled >= BUCKET_BYTES) | (here == 0)
        sent = replace(labels, lag=labels.lag + self._seconds(here, filled), bucket=np.where(ended, NO_BUCKET, SENT))
        return _joined([sent, replace(labels, bucket=begun + OPEN).keep(np.nonzero(~ended)[0])])

    def _seconds(self, options: Integers, filled: Integers) -> Floats:
        """Returns the seconds of all-reduces of some bytes on the GPUs of some options."""
        counts, time = self.costs.gpu_counts, self.costs.network.all_reduce_time
        kinds, which = np.unique(filled * self.count + options, return_inverse=True)
        sizes, found = np.divmod(kinds, self.count)
        seconds: Floats = np.array(
            [time(counts[x], size) for x, size in zip(found.tolist(), sizes.tolist(), strict=True)]
        )
        return seconds[which]

    def _reading(self, labels: _Labels, position: int, sources: Sequence[int]) -> _Labels:
        """Returns the ways with each option of the layers that are read, before they go on at a position."""
        for source in sources:
            if source in labels.pending:
                continue
            pending = tuple(sorted((*labels.pending, source)))
            if self.count ** len(pending) * (OPEN + len(self.backward)) > np.iinfo(np.intp).max:
                raise TooManyOptionsError
            rest = self.rests[position].min(axis=1)
            lag = labels.lag + self._awaited(labels, position)
            least = (labels.seconds + self.weights[:, None] * lag + rest[:, None]).max(axis=0)
            labels = self._few(labels, least, MOST_READ // self.count)
            digit = self.count ** pending.index(source)
            ways = len(labels.seconds)
            labels = labels.keep(np.tile(np.arange(ways), self.count))
            chosen = np.repeat(np.arange(self.count), ways)
            above = labels.options // digit * digit
            labels = replace(
                labels, pending=pending, options=above * self.count + chosen * digit + labels.options - above
            )
        return labels

    def _without(self, labels: _Labels, layer: int) -> _Labels:
        """Returns the ways without the option of a layer that nothing else reads."""
        digit = self.count ** labels.pending.index(layer)
        options = labels.options % digit + labels.options // (digit * self.count) * digit
        return replace(labels, pending=tuple(x for x in labels.pending if x != layer), options=options)


def _joined(parts: Sequence[_Labels]) -> _Labels:
    """Returns the ways of all parts, which have the same pending layers; none where there are no parts."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        nothing, none = np.zeros(0, dtype=np.intp), np.zeros(0)
        return _Labels((), nothing, nothing, none, none, nothing)
    return _Labels(
        parts[0].pending,
        np.concatenate([part.options for part in parts]),
        np.concatenate([part.bucket for part in parts]),
        np.concatenate([part.seconds for part in parts]),
        np.concatenate([part.lag for part in parts]),
        np.concatenate([part.parent for part in parts]),
    )


def _beside(lag: Floats, seconds: Floats, computing: float) -> Floats:
    """Returns the seconds of the lag that pass beside what takes ``seconds`` by itself."""
    if computing == 1:
        return np.where(seconds > 0, lag, 0.0)
    passed: Floats = np.minimum(lag, seconds / (1 - computing))
    return passed

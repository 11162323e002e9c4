"""Lower bounds of a block for all GPU partitions and all GPU counts of fork and join at once.

A branch that ends on GPU count m takes T(m) seconds, F(m) of them in the forward pass, and the join then pays X(m) for
the transfer of its results. The backward pass starts again at the join, so GPU groups side by side take

    max F + max (T - F) + sum X   over groups, with sum X within what the join's limit leaves.

No plan can beat

    max T + sum X                         with each X at its least but for one group's,

nor, since one group's forward pass and another one's backward pass may be the longest,

    max least F + max least (T - F) + sum X.

The search takes the first one, which is known sooner. The second one bounds each number of a label by itself
(``least_of``), and with the first one blocks side by side in the flow shop (``side_by_side``).
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from deeppool.costs.communication import CROSS_NODE, SAME_NODE, SAME_START
from deeppool.costs.table import Floats
from deeppool.planning.search.gpu_partition import PartitionSet
from deeppool.planning.search.pareto import Integers, efficient_rows
from deeppool.planning.search.shortest_path import PathTable, shortest

FORWARD, BACKWARD, WORK = range(3)
"""Numbers of a label: seconds of each pass, and the price of the GPU-seconds."""
NEVER = 1e30
"""Finite number of seconds in place of infinity for what the limit forbids."""


class BranchBounds:
    """Costs of one branch on every GPU group that it may have, with the transfer of its results to the join."""

    def __init__(
        self,
        path: tuple[PathTable, int],
        moved: Floats,
        tail: "tuple[Sequence[BlockBounds], int]",
        spent_share: Floats,
        *,
        priced: bool,
    ) -> None:
        """Bounds its seconds.

        Args:
            path: the ways through its layers, and the offset to add to their layers.
            moved: (S, last, join) price of the transfer from its last layer; inf where that is not permitted.
            tail: blocks after that layer which end at the join outside, one per group or none; and their offset.
            spent_share: (join,) share of a transfer's price that is for GPU-seconds.
            priced: whether GPU-seconds have a price.
        """
        (self.path, self.offset), self.moved, (self.tail, self.tail_offset) = path, moved, tail
        self.spent_share, self.priced = spent_share, priced
        # (S, last, join) lower bound of what comes behind the last layer.
        self._rest = least = moved
        if self.tail:
            self._rest = moved + np.stack([block.lower for block in self.tail])
            least = moved + np.stack([block.least for block in self.tail])[:, None, :]
        self.total = shortest(self.path.lower, self._rest)
        """(S, fork, join) lower bound of T + X."""
        self.least: Floats = least.min(axis=1)
        """(S, join) lower bound of X."""
        self.exact = all(step.exact for step, _ in self.path.steps) and all(block.exact for block in self.tail)
        """Whether the branch contains nothing of which not all ways are tried."""

    @cached_property
    def additive(self) -> Floats:
        """(S, fork or 1, join) lower bound of what adds up over branches side by side: X and GPU-seconds."""
        least = self.least[:, None, :]
        return self.least_work + least * (1 - self.spent_share) if self.priced else least

    @cached_property
    def least_work(self) -> Floats:
        """(S, fork, join) lower bound of the price of GPU-seconds."""
        return self.least_of(WORK)

    def least_of(self, number: int) -> Floats:
        """Returns (S, fork, join) lower bounds of F + X / 2, of B + X / 2 or of the price of GPU-seconds."""
        spent = np.where(np.isfinite(self.moved), self.moved, 0.0) * self.spent_share
        bound = spent if number == WORK else (self.moved - spent) / 2
        if self.tail:
            bound = bound + np.stack([block.least_of(number) for block in self.tail])
        return shortest(self.path.least_of(number), bound)

    def at_least(self, slot: int, before: int, after: int) -> tuple[float, float, float]:
        """Returns what no way beats in a group between two counts: what does not add up of T + X, the rest of it, X."""
        additive = float(self.additive[slot, min(before, self.additive.shape[1] - 1), after])
        total = (self.path.lower[slot, before] + self._rest[slot, :, after]).min()
        return float(total) - additive, additive, float(self.least[slot, after])

    def ends(self, slot: int, before: int, after: int) -> Integers:
        """Returns the counts of the last layer of which no other one beats T, as the search reckons with it, and X."""
        time, moved = self.path.guess[slot, before], self.moved[slot, :, after]
        rows = np.nonzero(np.isfinite(time + moved))[0]
        return rows[efficient_rows(None, time[rows], moved[rows])]


class Join(NamedTuple):
    """The layer at which branches meet, as far as it belongs to their block."""

    layer: int | None
    """None where it belongs to a series outside."""
    seconds: Floats
    """(3, fork, join) forward, backward and price of GPU-seconds, of the fork's own transfer to it too."""
    slack: Floats
    """(fork, join) price of the branches' transfers that its limit permits."""


class StackedBranches:
    """The branches of a block on every GPU group that one of them may have, stacked as rows: branch x S + group."""

    def __init__(self, bounds: Sequence[BranchBounds]) -> None:
        """Takes the branches, which have the same groups."""
        self.bounds, self.slots = bounds, len(bounds[0].moved)
        self.priced = bounds[0].priced
        self.exact = all(branch.exact for branch in bounds)
        """Whether they contain nothing of which not all ways are tried."""
        self.least = _rows([branch.least for branch in bounds])[:, None, :]
        """(row, 1, join) lower bound of X."""
        self.additive = _rows([branch.additive for branch in bounds])
        """(row, fork or 1, join) lower bound of what adds up over branches side by side."""
        self.excess: Floats = _rows([branch.total for branch in bounds]) - self.additive
        """(row, fork, join) lower bound of the rest of T + X."""
        self.half = self.least * (1 - bounds[0].spent_share) / 2
        """(row, 1, join) lower bound of the seconds of X in either pass."""
        self._least: dict[int, Floats] = {}

    def least_of(self, number: int) -> Floats:
        """Returns (row, fork, join) of one number of labels what no way can beat; of seconds without ``half``."""
        if number not in self._least:
            least = _rows([branch.least_of(number) for branch in self.bounds])
            self._least[number] = least if number == WORK else least - self.half
        return self._least[number]


def _combined(numbers: Floats, rows: Integers, combine: np.ufunc) -> Floats:
    """Returns (n, …) some of the numbers, combined; ``rows`` is (n, which of them)."""
    first, *others = rows.T
    found: Floats = numbers.take(first, axis=0)
    for row in others:
        combine(found, numbers.take(row, axis=0), out=found)
    return found


def _rows(bounds: Sequence[Floats]) -> Floats:
    """Returns the groups of all branches as rows, and a last one of zeros, for branches that a group lacks."""
    return np.concatenate([*(np.minimum(bound, NEVER) for bound in bounds), np.zeros((1, *bounds[0].shape[1:]))])


class BlockBounds:
    """Branches between a fork and a join on one group of GPUs, with their bounds."""

    def __init__(self, branches: StackedBranches, division: PartitionSet, slots: Integers, join: Join) -> None:
        """Finds the first bound.

        Args:
            branches: the branches.
            division: partitions of the GPUs among the branches.
            slots: which of the branches' groups each of the division's is.
            join: their join.
        """
        self.branches, self.division, self.join = branches.bounds, division, join
        self.own: Floats = join.seconds.sum(axis=0)
        """(fork, join) price of the join itself."""
        self.exact: bool = division.complete and branches.exact
        """Whether an evaluation finds the best way."""
        self._stacked, self._slots = branches, slots
        self._members = self._members_in(division.members % len(division.slots))
        arriving = self._over_groups(branches.least, np.add)
        summed = self._over_groups(branches.additive, np.add) if branches.priced else arriving
        self.time: Floats = self._over_groups(branches.excess, np.maximum)
        """(partition, fork, join) seconds that no way can beat; inf where none is permitted."""
        self.time += summed
        self.time += self.own
        self.time[(self.time >= NEVER / 2) | (arriving > join.slack)] = np.inf
        self.guess: Floats = self.time[: division.tried].min(axis=0)
        self.lower: Floats = np.minimum(self.guess, self.time[division.tried :].min(axis=0, initial=np.inf))
        """(fork, join) seconds that no way can beat."""
        self.least: Floats = arriving[:, 0].min(axis=0)
        """(join,) seconds of transfers into the join that no way can beat."""

    def _members_in(self, slots: Integers) -> Integers:
        """Returns (group, most branches) the rows of each group's branches if it is in some of the division's slots."""
        branch, every = self.division.members // len(self.division.slots), self._stacked.slots
        # The last row stands for the branches that a group has fewer than another one.
        rows: Integers = np.minimum(branch * every + self._slots[slots], len(self.branches) * every)
        return rows

    def side_by_side(self, summed: "BlockBounds | None" = None) -> tuple[Floats, Floats]:
        """Returns (fork, join) seconds that no way beats in any partition but the one in sequence, and what it lags.

        The second are seconds by which all-reduces on GPU 0 end later, relative to the backward pass; negative where
        this hides a part of those before it. A way that takes longer may add less, but both together are no less.

        Args:
            summed: the same block, priced by the forward pass and the all-reduces; None: these count for nothing.
        """
        time = np.minimum(self.time[1:].min(axis=0, initial=np.inf), NEVER)
        forward, backward = (self._least_of(number)[1:].min(axis=0, initial=NEVER) for number in (FORWARD, BACKWARD))
        seconds = np.maximum(time, forward + backward)
        if summed is not None and self.division.complete:
            forward = np.maximum(forward, self._summed(summed))
        return seconds, forward - seconds

    def _summed(self, summed: "BlockBounds") -> Floats:
        """Returns (fork, join) seconds of the forward pass and of all-reduces on GPU 0 that no such way beats.

        All-reduces of the group on the first GPUs count. As fewer GPUs may be enough for it, it may also be on later
        ones, of the first node or behind it: then none do.
        """
        rows, slots = self._stacked, self.division.slots
        first = np.array([slots[slot][1] == SAME_START for _, slot in self.division.lanes])[:, None, None]
        passes, moved = (_combined(numbers, self._members, np.add) for numbers in (rows.least_of(FORWARD), rows.half))
        near = [(_combined(summed._stacked.excess, self._members, np.add), moved)]
        for place in (SAME_NODE, CROSS_NODE):
            if any(at == place for _, at in slots):
                members = self._members_in(self.division.slots_at(place)[:, None])
                near.append((_combined(rows.least_of(FORWARD), members, np.add), _combined(rows.half, members, np.add)))
        least: Floats = np.full(self.own.shape, NEVER)
        for its_passes, its_moved in near:
            longest = _combined(np.where(first, its_passes, passes), self.division.used, np.maximum)
            every = longest + _combined(np.where(first, its_moved, moved), self.division.used, np.add)
            least = np.minimum(least, every[1:].min(axis=0, initial=NEVER))
        least += self.join.seconds[FORWARD]
        return least

    def least_of(self, number: int) -> Floats:
        """Returns (fork, join) of one number of labels what no way can beat, in any partition."""
        least: Floats = np.where(np.isfinite(self.time), self._least_of(number), np.inf).min(axis=0)
        return least

    def _least_of(self, number: int) -> Floats:
        """Returns (partition, fork, join) of one number of labels what no way can beat, in each partition."""
        own: Floats = self.join.seconds[number]
        least = self._stacked.least_of(number)
        if number == WORK:
            return self._over_groups(least, np.add) + own
        return self._over_groups(least, np.maximum) + self._over_groups(self._stacked.half, np.add) + own

    def _over_groups(self, seconds: Floats, combine: np.ufunc) -> Floats:
        """Returns (partition, …) sums over the branches of each group, combined over the groups of a partition."""
        return _combined(_combined(seconds, self._members, np.add), self.division.used, combine)

    def groups_of(self, index: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Yields the groups of a partition: their branches, their slot and their first GPU."""
        for group, kind in zip(self.division.arrangements[index], self.division.used[index].tolist(), strict=False):
            yield group.branches, int(self._slots[self.division.lanes[kind][1]]), group.start

"""Steps between a fork and its join, and the tables of paths that they are made of: one recursion over the tree.

A *block* is what lies between a fork and its join; its branches run on a partition of its GPUs into groups:

          ┌─ branch 0 ─┐        GPUs 0-3  | branch 0    | branch 2 |     one group: one after the other
    fork ─┼─ branch 1 ─┼─ join  GPUs 4-7  | branch 1 |               |   side by side
          └─ branch 2 ─┘                  F ──────────────────────── join

Every branch is a series of layers and blocks in turn. So a table of paths is made of steps (see ``shortest_path``), the
step of a block of bounds of its branches (see ``block_bounds``), and these of tables of paths on each group of GPUs.
The exact cost for one pair of GPU counts is computed when the search needs it (see ``block_evaluation``).
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from deeppool.base import cancellation
from deeppool.costs.communication import SAME_START, Locality
from deeppool.costs.table import Floats
from deeppool.graph.series_parallel import INPUT, NonSeriesParallel, ParallelBlock, Series, layers_of
from deeppool.planning.search.block_bounds import WORK, BlockBounds, BranchBounds, Join, StackedBranches
from deeppool.planning.search.block_evaluation import BlockEvaluation
from deeppool.planning.search.gpu_partition import GroupShape, partitions_of
from deeppool.planning.search.label_sums import StepLabels
from deeppool.planning.search.labels import Labels, PartialPlan, concatenated
from deeppool.planning.search.limited_costs import ROUNDING, LimitedCosts
from deeppool.planning.search.local_search import FEW_ENTRIES, MOST_ENTRIES, LocalSearch
from deeppool.planning.search.shortest_path import Budget, Edge, PathStep, PathTable

MOST_PAIRS = 20_000
"""Pairs of labels that a search tries to prove the last fraction of a per cent."""

GroupEnds = tuple[GroupShape, Locality | None]
"""GPUs as seen from a block's fork, and their locality as seen from a join that belongs to a series outside."""


class BlockStep:
    """A block or region on several groups of GPUs, as one step."""

    def __init__(self, parts: Sequence[BlockBounds | LocalSearch], budget: Budget) -> None:
        """Takes one part for each group."""
        self.parts, self._budget = parts, budget
        self.lower: Floats = np.stack([part.lower for part in parts])
        self.exact = all(isinstance(part, BlockBounds) and part.exact for part in parts)
        self.guess: Floats = self.lower if self.exact else np.stack([part.guess for part in parts])
        self.version = 0
        self._settled: dict[tuple[int, int, int], PartialPlan] = {}

    def least_of(self, number: int) -> Floats:
        """Returns (S, before, after) of one number of labels what no way can beat."""
        return np.stack([part.least_of(number) for part in self.parts])

    def settle(self, slot: int, before: int, after: int) -> PartialPlan:
        """Evaluates the step between two GPU counts and returns the best way found."""
        ends = slot, before, after
        if ends not in self._settled:
            cancellation.check()
            part = self.parts[slot]
            if isinstance(part, LocalSearch):
                self._settled[ends], lower = part.settle(before, after)
            else:
                self._settled[ends], lower = BlockEvaluation(part, before, after, self._budget).best()
            self._learn(ends, self._settled[ends].time, lower)
        return self._settled[ends]

    def _learn(self, ends: tuple[int, int, int], time: float, lower: float) -> None:
        """Takes the seconds of the best way found, and what none can beat."""
        if self.guess is self.lower and lower < time * (1 - ROUNDING):
            self.guess = self.lower.copy()
        known, guess = self.lower[ends], self.guess[ends]
        if lower > known * (1 + ROUNDING) or not abs(time - guess) <= ROUNDING * guess:
            self.version += 1
            self.lower[ends] = max(known, lower)
            self.guess[ends] = time

    def labels(self, slot: int, caps: Floats, budget: Budget) -> StepLabels:
        """Returns all ways within (before, after) seconds that trade forward for backward or GPU-seconds."""
        ends = np.argwhere(np.isfinite(self.lower[slot]) & (self.lower[slot] <= caps))
        found = [
            self._labels(slot, before, after, float(caps[before, after]), budget) for before, after in ends.tolist()
        ]
        before, after = np.repeat(ends, [len(labels.plans) for labels in found], axis=0).T
        every = concatenated(found)
        return StepLabels(before, after, every.values[:3], every.plans)

    def _labels(self, slot: int, before: int, after: int, cap: float, budget: Budget) -> Labels:
        part = self.parts[slot]
        assert isinstance(part, BlockBounds)
        evaluation = BlockEvaluation(part, before, after, budget)
        return evaluation.joined(evaluation.labels(cap - evaluation.own)).efficient()


class BlockSolver:
    """Builds the steps and path tables of one search; equal ones are built once."""

    def __init__(self, prices: LimitedCosts, *, proving: bool = True, side_by_side: bool = True) -> None:
        """Starts without any.

        Args:
            prices: costs of the layers.
            proving: looks for the best ways, by what none can beat, within a budget; else takes those that are
                found first for the best.
            side_by_side: whether branches may have groups of GPUs of their own.
        """
        self.prices, self.side_by_side = prices, side_by_side
        self.counts = prices.gpu_counts
        cluster = prices.costs.network.cluster
        self.gpus, self._gpus_per_node = cluster.gpus, cluster.gpus_per_node
        self.budget = Budget(MOST_PAIRS if proving else 0)
        self._most_entries = MOST_ENTRIES if proving else FEW_ENTRIES
        self._steps: dict[object, tuple[BlockStep, int]] = {}
        self._paths: dict[object, tuple[PathTable, int]] = {}
        self._fits: dict[tuple[GroupShape, ...], Floats] = {}
        self.works: dict[object, Floats] | None = None
        """Least GPU-seconds of branches, for searches of the same layers at other prices of a GPU-second."""

    def whole(self, series: Series) -> tuple[PartialPlan, float]:
        """Returns the best plan found of a model, and the price that none can beat."""
        path = PathTable(self.steps(series), self.fits(((self.gpus, SAME_START),)), self.budget)
        while True:
            last = int(path.guess[0, 0].argmin())
            found = path.settle(0, 0, last)
            if path.guess[0, 0, last] <= path.guess.min():
                break
        return found, min(found.time, float(path.lower.min()))

    def steps(self, series: Series) -> list[tuple[PathStep, int]]:
        """Returns the steps of a model on all GPUs, each with the offset to add to its layers."""
        return self._steps_of(series, INPUT, ((self.gpus, SAME_START),))

    def _steps_of(self, series: Series, fork: int, slots: tuple[GroupShape, ...]) -> list[tuple[PathStep, int]]:
        steps: list[tuple[PathStep, int]] = []
        for layer, block in zip(series.layers, series.blocks, strict=True):
            if block is None:
                places = {place for _, place in slots}
                few = places.pop() if len(places) == 1 else None
                steps.append((Edge(self.prices, fork, layer, [p for _, p in slots] if few is None else [few]), 0))
            else:
                steps.append(self.step(block, fork, layer, slots))
            # After the first layer, transfers stay in the slot.
            fork, slots = layer, tuple((width, SAME_START) for width, _ in slots)
        return steps

    def step(
        self,
        block: ParallelBlock | NonSeriesParallel,
        fork: int,
        join: int,
        slots: tuple[GroupShape, ...],
        exits: tuple[Locality, ...] | None = None,
    ) -> tuple[BlockStep, int]:
        """Returns the step between a fork and its join, and the offset to add to its layers.

        Args:
            block: branches or a region.
            fork: layer before it.
            join: layer after it.
            slots: GPUs to use, seen from the fork's.
            exits: the same seen from the join's, for branches whose join belongs to a series outside; the step
                then does not contain it.
        """
        layers = sorted(layers_of(block))
        key = self.prices.shape([*layers, join]), slots, exits
        if key not in self._steps:
            ends = list(zip(slots, exits or (None,) * len(slots), strict=True))
            # After a first layer equally wide groups cost the same.
            distinct = list(dict.fromkeys(ends))
            found: Sequence[BlockBounds | LocalSearch]
            if isinstance(block, NonSeriesParallel):
                fitting = ((slot[1], self.fits((slot,))[0, 0]) for slot, _ in distinct)
                found = [LocalSearch(self.prices, block, fork, join, *each, self._most_entries) for each in fitting]
            else:
                found = self._blocks(block, fork, join, distinct)
            parts = [found[distinct.index(each)] for each in ends]
            self._steps[key] = BlockStep(parts, self.budget), layers[0]
        step, first = self._steps[key]
        return step, layers[0] - first

    def _blocks(self, block: ParallelBlock, fork: int, join: int, ends: Sequence[GroupEnds]) -> list[BlockBounds]:
        """Returns a block on each of some groups of GPUs; its branches are priced once on all groups inside these."""
        cancellation.check()
        lanes = self.counts if self.side_by_side else ()
        divisions = [partitions_of(block, lanes, width, self._gpus_per_node) for (width, _), _ in ends]
        meetings = [self._join(block, fork, join, entry, contained=exit_ is None) for (_, entry), exit_ in ends]
        inside = [
            [((wide, max(entry, place)), max(exit_ or SAME_START, place)) for wide, place in division.slots]
            for division, ((_, entry), exit_) in zip(divisions, ends, strict=True)
        ]
        numbers = {each: number for number, each in enumerate(dict.fromkeys(itertools.chain(*inside)))}
        most = np.max([meeting.slack for meeting in meetings], axis=(0, 1))
        entries, behind = tuple(entry for entry, _ in numbers), tuple(exit_ for _, exit_ in numbers)
        branches = [self._branch(branch, fork, join, entries, behind, most) for branch in block.branches]
        stacked = StackedBranches(branches)
        return [
            BlockBounds(stacked, division, np.array([numbers[each] for each in its]), meeting)
            for division, its, meeting in zip(divisions, inside, meetings, strict=True)
        ]

    def _join(self, block: ParallelBlock, fork: int, join: int, entry: Locality, *, contained: bool) -> Join:
        prices, count = self.prices, len(self.counts)
        zeros = np.zeros((1 if fork == INPUT else count, count))
        if not contained:
            return Join(None, np.stack([zeros] * 3), zeros + np.inf)
        direct = prices.move(fork, join, entry) if block.direct else zeros
        spent = prices.spent(direct)
        forward, added = (direct - spent) / 2 + prices.forward[join], spent + prices.added[join]
        backward = direct + prices.own[join] - forward - added
        return Join(join, np.stack([forward, backward, added]), prices.room[join] - direct)

    def _branch(
        self,
        branch: Series,
        fork: int,
        join: int,
        entries: tuple[GroupShape, ...],
        exits: tuple[Locality, ...],
        most: Floats,
    ) -> BranchBounds:
        """Returns a branch on every group of GPUs that it may have; ``most`` is the join's largest (join,) slack."""
        prices, last = self.prices, branch.layers[-1]
        # (S, K, 1): the branch's last layer fits into the group.
        moved = np.swapaxes(self.fits(entries), 1, 2)
        if last in prices.layers[join].predecessors:
            moved = moved + np.stack([prices.move(last, join, place) for place in exits])
            moved = np.where(moved <= most, moved, np.inf)
        else:
            moved = np.broadcast_to(moved, (*moved.shape[:2], len(self.counts)))
        tail: tuple[Sequence[BlockBounds], int] = (), 0
        if branch.tail is not None:
            inside = tuple((width, SAME_START) for width, _ in entries)
            step, offset = self.step(branch.tail, last, join, inside, exits)
            tail = [part for part in step.parts if isinstance(part, BlockBounds)], offset
        bounds = BranchBounds(self._path(branch, fork, entries), moved, tail, prices.spent_share, priced=prices.priced)
        if self.works is not None:
            key = prices.shape([*sorted(layers_of(branch)), join]), entries, exits
            if key not in self.works:
                self.works[key] = bounds.least_of(WORK) / prices.work_price
            bounds.least_work = self.works[key] * prices.work_price
        return bounds

    def _path(self, series: Series, fork: int, slots: tuple[GroupShape, ...]) -> tuple[PathTable, int]:
        """Returns the ways through a branch up to its tail, on each group, and the offset to add to their layers."""
        # Layers of a tail are read outside, which their shape does not show: two layers in a row may be a branch
        # as well as a layer and its tail.
        layers = sorted(layers_of(replace(series, tail=None)))
        key = self.prices.shape(layers), slots
        if key not in self._paths:
            self._paths[key] = PathTable(self._steps_of(series, fork, slots), self.fits(slots), self.budget), layers[0]
        path, first = self._paths[key]
        return path, layers[0] - first

    def fits(self, slots: tuple[GroupShape, ...]) -> Floats:
        """Returns (S, 1, K) 0 where a GPU count fits into a slot, else inf."""
        if slots not in self._fits:
            widths = np.array([width for width, _ in slots])
            fits = np.where(np.array(self.counts) <= widths[:, None], 0.0, np.inf)
            self._fits[slots] = fits[:, None, :]
        return self._fits[slots]

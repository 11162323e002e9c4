"""The step from a fork to its join, with the branches between them on the best partition of the GPUs.

A branch that ends on GPU count m takes T(m) seconds, F(m) of them in the forward pass, and the join then
pays X(m) for the transfer of its results. The backward pass starts again at the join, so GPU groups side by side take

    max F + max (T - F) + sum X   over groups, with sum X within what the join's limit leaves.

Lower bounds of that are computed for all partitions and all GPU counts of fork and join at once (see
``block_bounds``). The exact cost for one pair of counts is computed when the search needs it (see
``block_evaluation``).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from deeppool.costs.communication import SAME_START, Locality
from deeppool.costs.table import Floats
from deeppool.graph.series_parallel import INPUT, NonSeriesParallel, ParallelBlock, Series, layers_of
from deeppool.planning.search.block_bounds import BlockBounds
from deeppool.planning.search.block_evaluation import BlockEvaluation
from deeppool.planning.search.branch_bounds import BranchBounds
from deeppool.planning.search.gpu_partition import GroupShape, partitions_of
from deeppool.planning.search.limited_costs import ROUNDING, LimitedCosts
from deeppool.planning.search.local_search import LocalSearch
from deeppool.planning.search.shortest_path import (
    INFEASIBLE,
    Budget,
    Choice,
    Edge,
    PartialPlan,
    PathTable,
    Step,
    efficient,
    shortest,
)

MOST_PAIRS = 100_000
"""Pairs of plans that a search tries to prove the last fraction of a per cent."""


class BlockSolver:
    """Builds the steps and path tables of one search; equal ones are built once."""

    def __init__(
        self, prices: LimitedCosts, *, proving: bool = True, side_by_side: bool = True, bounding: bool = False
    ) -> None:
        """Starts without any.

        Args:
            prices: costs of the layers.
            proving: looks for the best ways, by what none can beat, within a budget; else takes those that are
                found first for the best.
            side_by_side: whether branches may have lanes of their own.
            bounding: bounds blocks with partitions that are not tried, instead of taking the best one tried.
        """
        self.prices, self.proving, self.side_by_side, self.bounding = prices, proving, side_by_side, bounding
        self.complete = True
        """Whether every partition of every block so far is tried."""
        self.counts = prices.gpu_counts
        network = prices.costs.network
        self.gpus = network.cluster.gpus
        self.nodes = network.cluster.gpus_per_node, network.near_is_fast
        self.budget = Budget(MOST_PAIRS if proving else 0)
        self._steps: dict[object, tuple[BatchedStep, int]] = {}
        self._ways: dict[object, tuple[PathTable, int]] = {}
        self._fits: dict[tuple[GroupShape, ...], Floats] = {}

    def whole(self, series: Series) -> PartialPlan:
        """Returns the best plan of a model."""
        way = self._all(series)
        while True:
            last = int(way.guess[0, 0].argmin())
            passage = way.settle(0, 0, last)
            if way.guess[0, 0, last] <= way.guess.min():
                break
        lower = float(way.lower.min())
        if not self.complete:
            bounds = BlockSolver(self.prices, side_by_side=self.side_by_side, bounding=True)
            lower = min(lower, float(bounds._all(series).lower.min()))
        return passage._replace(lower=min(passage.time, lower))

    def _all(self, series: Series) -> PathTable:
        """Returns the ways through a model on all GPUs."""
        return PathTable(self.steps(series), self.fits(((self.gpus, SAME_START),)), self.budget)

    def way(self, series: Series, fork: int, slots: tuple[GroupShape, ...]) -> tuple[PathTable, int]:
        """Returns the ways through a branch up to its tail, in each slot, and the offset to add to their layers."""
        # Layers of a tail are read outside, which their shape does not show: two layers in a row may be a branch
        # as well as a layer and its tail.
        layers = sorted(layers_of(replace(series, tail=None)))
        key = self.prices.shape(layers), slots
        if key not in self._ways:
            self._ways[key] = PathTable(self._steps_of(series, fork, slots), self.fits(slots), self.budget), layers[0]
        way, first = self._ways[key]
        return way, layers[0] - first

    def step(
        self,
        block: ParallelBlock | NonSeriesParallel,
        fork: int,
        join: int,
        slots: tuple[GroupShape, ...],
        exits: tuple[Locality, ...] | None = None,
    ) -> tuple["BatchedStep", int]:
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
            parts: list[BlockStep | LocalSearch] = []
            for number, slot in enumerate(slots):
                if isinstance(block, NonSeriesParallel):
                    fits = self.fits((slot,))[0, 0]
                    parts.append(LocalSearch(self.prices, block, fork, join, slot[1], fits))
                else:
                    parts.append(BlockStep(self, block, fork, join, slot, None if exits is None else exits[number]))
            self._steps[key] = BatchedStep(parts), layers[0]
        step, first = self._steps[key]
        return step, layers[0] - first

    def fits(self, slots: tuple[GroupShape, ...]) -> Floats:
        """Returns (S, 1, K) 0 where a GPU count fits into a slot, else inf."""
        if slots not in self._fits:
            widths = np.array([width for width, _ in slots])
            fits = np.where(np.array(self.counts) <= widths[:, None], 0.0, np.inf)
            self._fits[slots] = fits[:, None, :]
        return self._fits[slots]

    def steps(self, series: Series) -> list[tuple[Step, int]]:
        """Returns the steps of a model on all GPUs, each with the offset to add to its layers."""
        return self._steps_of(series, INPUT, ((self.gpus, SAME_START),))

    def _steps_of(self, series: Series, fork: int, slots: tuple[GroupShape, ...]) -> list[tuple[Step, int]]:
        steps: list[tuple[Step, int]] = []
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


class BatchedStep:
    """Blocks or regions that differ in their GPUs only, as one step."""

    def __init__(self, parts: Sequence["BlockStep | LocalSearch"]) -> None:
        """Takes one part for each slot."""
        self.parts = parts
        self.lower: Floats = np.stack([part.lower for part in parts])
        exact = all(part.lower is part.guess for part in parts)
        self.guess: Floats = self.lower if exact else np.stack([part.guess for part in parts])
        # Later updates of a part show here.
        for part, lower, guess in zip(parts, self.lower, self.guess, strict=True):
            part.lower, part.guess = lower, guess

    @cached_property
    def passes(self) -> Floats:
        """(S, 3, before, after) forward, backward and price of GPU-seconds that no way can beat."""
        return np.stack([part.passes for part in self.parts])

    @property
    def version(self) -> int:
        """Grows whenever a price changes."""
        return sum(part.version for part in self.parts)

    @property
    def least(self) -> Floats:
        """(S, join) seconds of transfers into a join outside that no way can beat."""
        return np.stack([part.least for part in self.parts if isinstance(part, BlockStep)])

    def crossing(self, slot: int) -> "BlockStep":
        """Returns a part that is no region."""
        part = self.parts[slot]
        assert isinstance(part, BlockStep)
        return part

    def settle(self, slot: int, before: int, after: int) -> PartialPlan:
        """Returns the best way, with its real price."""
        return self.parts[slot].settle(before, after)

    def settled(self, slot: int) -> dict[tuple[int, int], PartialPlan]:
        """Returns the ways that are evaluated, by the GPU counts of fork and join."""
        return self.parts[slot].settled

    def front(self, slot: int, before: int, after: int, cap: float) -> list[PartialPlan]:
        """Returns all ways within ``cap`` seconds that trade forward for backward."""
        return self.parts[slot].front(before, after, cap)


class BlockStep:
    """Branches between a fork and its join, and the join itself if it belongs to the same series."""

    def __init__(
        self,
        crossings: BlockSolver,
        block: ParallelBlock,
        fork: int,
        join: int,
        slot: GroupShape,
        exit_: Locality | None,
    ) -> None:
        """Bounds every pair of GPU counts of the fork and the join."""
        self.crossings, self.block, self.fork, self.join = crossings, block, fork, join
        prices, (width, entry) = crossings.prices, slot
        self.width = width
        count = len(crossings.counts)
        lanes = crossings.counts if crossings.side_by_side else ()
        self.division = partitions_of(block, lanes, width, *crossings.nodes)
        crossings.complete = crossings.complete and self.division.complete
        self.complete = self.division.complete or not crossings.bounding
        """Whether the partitions to try are those that count."""
        self.version = 0
        zeros = np.zeros((1 if fork == INPUT else count, count))
        self.own, self.own_parts, self.slack = zeros, np.stack([zeros] * 3), zeros + np.inf
        self.priced, self.spent_share = prices.priced, prices.spent_share
        self.has_join = exit_ is None
        if exit_ is None:
            direct = prices.move(fork, join, entry) if block.direct else zeros
            self.own = direct + prices.own[join]
            spent = prices.spent(direct)
            own_forward, own_added = (direct - spent) / 2 + prices.forward[join], spent + prices.added[join]
            self.own_parts = np.stack([own_forward, self.own - own_forward - own_added, own_added])
            self.slack = prices.room[join] - direct
        self._entries = tuple((wide, max(entry, place)) for wide, place in self.division.slots)
        self._exits = tuple(max(exit_ or SAME_START, place) for _, place in self.division.slots)
        self.reaches = [self._reach(branch) for branch in block.branches]
        self.settled: dict[tuple[int, int], PartialPlan] = {}
        self.bounds = BlockBounds(self.division, self.reaches, self.own, self.own_parts, self.slack)
        tried = self.bounds.time.min(axis=0)
        self.lower: Floats
        self.least: Floats
        """(join,) seconds of transfers into the join that no way can beat."""
        self.lower, self.least = (tried, self.bounds.least) if self.complete else self._anywhere()
        self.exact = crossings.proving and self.complete and all(reach.exact for reach in self.reaches)
        """Whether the evaluation finds the best way."""
        self.guess = self.lower if self.exact else tried.copy()

    # -- bounds, for all GPU counts at once ---------------------------------------------------------

    def _reach(self, branch: Series) -> BranchBounds:
        """Returns a branch in every slot of the division."""
        crossings, prices, last = self.crossings, self.crossings.prices, branch.layers[-1]
        way, layers = crossings.way(branch, self.fork, self._entries)
        # (S, K, 1): the branch's last layer fits into the slot.
        moved = np.swapaxes(crossings.fits(self._entries), 1, 2)
        if last in prices.layers[self.join].predecessors:
            moved = moved + np.stack([prices.move(last, self.join, place) for place in self._exits])
            moved = np.where(moved <= self.slack.max(axis=0), moved, np.inf)
        else:
            moved = np.broadcast_to(moved, (*moved.shape[:2], len(crossings.counts)))
        tail, bound, least = None, moved, moved
        if branch.tail is not None:
            inside = tuple((width, SAME_START) for width, _ in self._entries)
            tail = crossings.step(branch.tail, last, self.join, inside, self._exits)
            bound, least = moved + tail[0].lower, moved + tail[0].least[:, None, :]
        total = shortest(way.lower, bound)
        return BranchBounds(way, layers, moved, tail, total, least.min(axis=1), prices.spent_share, self.priced)

    def sharpen(self) -> None:
        """Bounds the passes by themselves too, for all GPU counts: worth its time once a pair of them needs it."""
        if self.bounds.sharp:
            return
        self.bounds.sharpen()
        if self.complete:
            lower = self.bounds.time.min(axis=0)
            for known in (self.lower, self.guess):
                np.maximum(known, lower, out=known)
            self.version += 1

    @property
    def passes(self) -> Floats:
        """(3, fork, join) forward, backward and price of GPU-seconds that no way can beat."""
        return self.bounds.passes if self.complete else np.zeros((3, *self.own.shape))

    def _anywhere(self) -> tuple[Floats, Floats]:
        """Returns bounds of seconds and transfers for all partitions, tried or not.

        The slowest branch has its best slot, or all GPUs compute all the time what the branches compute at least.
        """
        least = np.array([reach.least.min(axis=0) for reach in self.reaches])
        additive = np.array([reach.additive.min(axis=0) for reach in self.reaches])
        total = np.array([reach.total.min(axis=0) for reach in self.reaches])
        arriving = least.sum(axis=0)
        with np.errstate(invalid="ignore"):
            alone = np.maximum((total - additive).max(axis=0), self._least_work() / self.width)
            time = alone + additive.sum(axis=0) + self.own
        permitted = np.isfinite(total).all(axis=0) & (arriving <= self.slack)
        return np.where(permitted, time, np.inf), arriving

    def _least_work(self) -> float:
        """Returns GPU-seconds that the layers of the branches compute at least, whatever their GPU counts."""
        prices, layers = self.crossings.prices, list(layers_of(self.block))
        counts = np.array(self.crossings.counts)
        seconds = prices.own[layers] - prices.added[layers]
        within = counts <= self.width
        return float((seconds * counts)[:, within].min(axis=1).sum())

    # -- real prices, for one pair of GPU counts ----------------------------------------------------

    def settle(self, before: int, after: int) -> PartialPlan:
        """Returns the best lanes between two GPU counts, with their real price."""
        ends = before, after
        if ends not in self.settled:
            single = len(self.reaches) == 1 and self.exact and self.reaches[0].tail is None
            found = self._through(*ends) if single else BlockEvaluation(self, *ends).best()
            self.settled[ends] = found
            # What is not evaluated exactly keeps its bound; the search then uses the plan that was found.
            price = found.lower if self.exact else found.time
            if price > self.guess[ends] * (1 + ROUNDING):
                self.guess[ends] = price
                self.version += 1
        return self.settled[ends]

    def _through(self, before: int, after: int) -> PartialPlan:
        """Returns the best way where there is one branch, as in a residual connection."""
        way, layers = self.reaches[0].way, self.reaches[0].layers
        moved = self.reaches[0].moved[0, :, after]
        moved = np.where(moved <= self.slack[before, after], moved, np.inf)
        while True:
            # Evaluating a way may make it slower than others.
            times = way.lower[0, before] + moved
            last = int(times.argmin())
            if times[last] == math.inf:
                return INFEASIBLE
            passage = way.settle(0, before, last)
            if way.lower[0, before, last] + moved[last] <= times[last]:
                break
        own, spent = float(self.own[before, after]), float(moved[last] * self.spent_share[after])
        own_forward, _, own_added = self.own_parts[:, before, after].tolist()
        parts = ((passage, layers, 0), *((Choice(self.join, after, 0),) if self.has_join else ()))
        forward = passage.forward + (float(moved[last]) - spent) / 2 + own_forward
        return PartialPlan(
            passage.time + float(moved[last]) + own,
            forward,
            passage.lower + float(moved[last]) + own,
            parts,
            passage.added + spent + own_added,
        )

    def front(self, before: int, after: int, cap: float) -> list[PartialPlan]:
        """Returns all ways within ``cap`` seconds that trade forward for backward."""
        self.sharpen()
        evaluation = BlockEvaluation(self, before, after)
        ways = evaluation.ways(cap - evaluation.own, thorough=True)
        return efficient([evaluation.passage(ways, index) for index in range(len(ways.parts))])

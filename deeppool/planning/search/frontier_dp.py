"""Labels of the efficient plans of every part of a model: a layer, a series, the branches of a block.

The branches of a block get labels on every GPU group that a partition of the GPUs may give them (see ``labels``).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from deeppool.base import cancellation
from deeppool.costs.communication import CROSS_NODE, SAME_NODE, SAME_START, Locality
from deeppool.costs.table import Floats
from deeppool.graph.series_parallel import INPUT, NonSeriesParallel, ParallelBlock, Series, layers_of
from deeppool.planning.search.gpu_partition import GroupShape, partitions_of
from deeppool.planning.search.labels import (
    Integers,
    LabelSet,
    concatenate,
    count_pairs,
    dominated_by,
    efficient,
    efficient_in_passes,
    one_after_another,
    pairs,
    side_by_side,
)
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.shortest_path import Choice, ExhaustedError

TOP = 0.35
"""Share of the ratio by which the series of the whole model is thinned."""
MOST_KEPT = 3_000
"""Most labels of the series of the whole model, where none is rounded."""

PLACES: tuple[Locality, ...] = (SAME_START, SAME_NODE, CROSS_NODE)


@dataclass(frozen=True, slots=True, eq=False)
class GroupLabels:
    """Labels of branches on some GPU groups of a block."""

    menu: LabelSet
    least: Floats
    """(K,) seconds that the join pays at least to fetch their results."""

    def elsewhere(self, start: int) -> "GroupLabels":
        """Returns the same labels on other GPUs."""
        return replace(self, menu=self.menu.elsewhere(0, start))


class LabelSolver:
    """Computes the labels of the parts of one model; equal parts share them."""

    def __init__(self, prices: LimitedCosts, ratio: float, most: float) -> None:
        """Starts without labels.

        Args:
            prices: without a limit.
            ratio: ratio by which seconds may be rounded in each menu; 0: every efficient way is kept.
            most: ways to try, before ExhaustedError is raised.
        """
        self.prices, self.ratio = prices, ratio
        self.counts = np.array(prices.gpu_counts, dtype=float)
        self.gpus = prices.costs.network.cluster.gpus
        self.complete = True
        """Whether the labels so far hold every plan, or one that represents it."""
        self._left = most
        self._known: dict[object, tuple[LabelSet, int]] = {}

    def step(
        self,
        block: ParallelBlock | NonSeriesParallel | None,
        fork: int,
        layer: int,
        slot: GroupShape,
        *,
        beside: bool = False,
    ) -> LabelSet:
        """Returns the labels of the step from a layer of a series to the next one, that one included.

        Args:
            block: branches or region between them.
            fork: the layer before.
            layer: the next one.
            slot: GPUs to use, seen from the fork's.
            beside: other branches run at the same time, so that each pass counts by itself.
        """
        if block is None:
            return self._alone(fork, layer, slot)
        key = "step", self.prices.shape([*sorted(layers_of(block)), layer]), fork == INPUT, slot, beside
        first = min(layers_of(block))
        if key not in self._known:
            if isinstance(block, NonSeriesParallel):
                found = self._region(block, fork, layer, slot)
            else:
                found = self._crossing(block, fork, layer, slot, beside)
            self._known[key] = found, first
        menu, there = self._known[key]
        return menu.elsewhere(first - there)

    def series(self, first: LabelSet, second: LabelSet) -> LabelSet:
        """Returns the efficient ways through two parts in sequence, of ways with the same last count."""
        counts = len(self.counts)
        second = efficient(second, counts, self.ratio)
        self._spend(count_pairs(first.after, second.before))
        made = one_after_another(first, second, *pairs(first.after, second.before))
        kept = efficient(made, counts, TOP * self.ratio)
        if not self.ratio and len(kept) > MOST_KEPT:
            raise ExhaustedError
        return kept

    def ended(self, menu: LabelSet) -> LabelSet:
        """Returns the efficient ways, whatever their last count."""
        return efficient(replace(menu, after=np.zeros_like(menu.after)), len(self.counts))

    def efficient(self, menu: LabelSet, beside: bool) -> LabelSet:
        """Returns the rows that matter."""
        if self.ratio or not beside:
            return efficient(menu, len(self.counts), self.ratio)
        return efficient_in_passes(menu, len(self.counts))

    def _series(self, series: Series, fork: int, slot: GroupShape, beside: bool) -> LabelSet:
        """Returns a branch up to its tail, within a slot."""
        layers = sorted(x for part in (*series.blocks,) for x in layers_of(part)) + list(series.layers)
        key = "series", self.prices.shape(sorted(layers)), fork == INPUT, slot, beside
        first = min(layers)
        if key not in self._known:
            menu = None
            for layer, block in zip(series.layers, series.blocks, strict=True):
                step = self.step(block, fork, layer, slot, beside=beside)
                menu = step if menu is None else self._then(menu, step, beside)
                fork, slot = layer, (slot[0], SAME_START)
            assert menu is not None
            self._known[key] = menu, first
        menu, there = self._known[key]
        return menu.elsewhere(first - there)

    def _then(self, first: LabelSet, second: LabelSet, beside: bool) -> LabelSet:
        self._spend(count_pairs(first.after, second.before))
        return self.efficient(one_after_another(first, second, *pairs(first.after, second.before)), beside)

    def _together(self, first: LabelSet, second: LabelSet, beside: bool) -> LabelSet:
        """Returns both parts one after the other, between the same ends."""
        keys = self._ends(first), self._ends(second)
        self._spend(count_pairs(*keys))
        return self.efficient(one_after_another(first, second, *pairs(*keys)), beside)

    def _parallel(self, first: GroupLabels, second: GroupLabels, beside: bool) -> GroupLabels:
        """Returns both parts at the same time, between the same ends."""
        keys = self._ends(first.menu), self._ends(second.menu)
        self._spend(count_pairs(*keys))
        left, right = pairs(*keys)
        made = side_by_side(first.menu, second.menu, left, right)
        if self.ratio:
            # The longer of the two, and what the join at least pays for the other one.
            after = made.after
            lower = np.maximum(
                first.menu.lower[left] + second.least[after], second.menu.lower[right] + first.least[after]
            )
            made = replace(made, lower=np.minimum(lower, made.time))
        return GroupLabels(self.efficient(made, beside), first.least + second.least)

    def _ends(self, menu: LabelSet) -> Integers:
        return menu.before * len(self.counts) + menu.after

    def _spend(self, rows: int) -> None:
        cancellation.check()
        self._left -= rows
        if self._left < 0:
            raise ExhaustedError

    def _alone(self, source: int, layer: int, slot: GroupShape) -> LabelSet:
        return self._priced(layer, self.prices.move(source, layer, slot[1]), slot)

    def _priced(self, layer: int, moved: np.ndarray, slot: GroupShape) -> LabelSet:
        """Returns a layer and the transfers into it, from each count before to each of its own within the slot."""
        wide = int((self.counts <= slot[0]).sum())
        before, after = (x.ravel() for x in np.indices((len(moved), wide)))
        shift = moved[:, :wide].ravel()
        time = shift + self.prices.own[layer][after]
        forward = shift / 2 + self.prices.forward[layer][after]
        return LabelSet(
            before, after, forward, time - forward, 0 * time, time * self.counts[after], time,
            lambda row: iter((Choice(layer, int(after[row]), 0),)),
        )  # fmt: skip

    def _crossing(self, block: ParallelBlock, fork: int, join: int, slot: GroupShape, beside: bool) -> LabelSet:
        nothing = np.zeros((1 if fork == INPUT else len(self.counts), len(self.counts)))
        direct = self.prices.move(fork, join, slot[1]) if block.direct else nothing
        branches = self._branches(block, fork, join, slot, None, beside)
        found = self._together(branches, self._priced(join, direct, slot), beside)
        # The join has waited for its transfers.
        settled = LabelSet(
            found.before, found.after, found.forward + found.moved / 2, found.backward + found.moved / 2,
            0 * found.moved, found.work, found.lower, found.trace,
        )  # fmt: skip
        return self.efficient(settled, beside)

    def _branches(
        self, block: ParallelBlock, fork: int, join: int, slot: GroupShape, leave: Locality | None, beside: bool
    ) -> LabelSet:
        """Returns all branches in all lanes; ``leave``: locality of the slot relative to a join outside."""
        width, entry = slot
        inside = None if leave is not None else width
        network = self.prices.costs.network
        nodes = network.cluster.gpus_per_node, network.near_is_fast
        ways = partitions_of(block, self.prices.gpu_counts, width, *nodes)
        self.complete = self.complete and ways.complete
        parts = {}
        lanes = {}
        for number, (branches, slot_number) in enumerate(ways.lanes):
            wide, place = ways.slots[slot_number]
            menu, several = None, not self.ratio and (beside or number > 0)
            for branch in branches:
                key = branch, slot_number, several
                if key not in parts:
                    there = wide, max(entry, place)
                    parts[key] = self._to_join(
                        block.branches[branch], fork, join, there, max(leave or SAME_START, place), inside, several
                    )
                menu = parts[key] if menu is None else self._together(menu, parts[key], several)
            leaves = max(leave or SAME_START, place)
            least = np.sum([self._least(block.branches[branch], join, wide, leaves) for branch in branches], axis=0)
            assert menu is not None
            lanes[branches, wide, place] = GroupLabels(menu, least)
        known = lanes[ways.lanes[0][0], width, SAME_START].menu
        for arrangement in ways.arrangements[1:]:
            chosen = [lanes[lane.branches, lane.width, lane.place].elsewhere(lane.start) for lane in arrangement]
            menu = self._side_by_side(chosen, known, beside)
            if len(menu):
                known = self.efficient(concatenate([known, menu]), beside)
        return known

    def _side_by_side(self, lanes: list[GroupLabels], known: LabelSet, beside: bool) -> LabelSet:
        """Returns lanes that run at the same time, without those that known ways beat in any case."""
        floors = [self._floor(lane.menu) for lane in lanes]
        kept = []
        for number, lane in enumerate(lanes):
            others = [*range(number), *range(number + 1, len(lanes))]
            kept.append(self._promising(lane, [lanes[x] for x in others], [floors[x] for x in others], known, beside))
            if not len(kept[-1].menu):
                return kept[-1].menu
        first = kept[0]
        for number, other in enumerate(kept[1:], 2):
            first = self._parallel(first, other, beside or number < len(kept))
            first = self._promising(first, kept[number:], floors[number:], known, beside)
        return first.menu

    def _floor(self, menu: LabelSet) -> Floats:
        """Returns (K x K,) the least work between two ends."""
        floor = np.full(len(self.counts) ** 2, np.inf)
        np.minimum.at(floor, self._ends(menu), menu.work)
        return floor

    def _promising(
        self, lane: GroupLabels, others: list[GroupLabels], floors: list[Floats], known: LabelSet, beside: bool
    ) -> GroupLabels:
        """Returns the ways that may be efficient beside other lanes."""
        if beside and not self.ratio:
            return lane
        menu = lane.menu
        ends = self._ends(menu)
        time = menu.lower + sum((other.least[menu.after] for other in others), np.zeros(len(menu)))
        work = menu.work + sum((floor[ends] for floor in floors), np.zeros(len(menu)))
        rows = np.nonzero(np.isfinite(work) & ~dominated_by(ends, time, work, self._ends(known), known))[0]
        return replace(lane, menu=menu.keep(rows))

    def _least(self, branch: Series, join: int, width: int, leave: Locality) -> Floats:
        """Returns (K,) seconds that the join pays at least to fetch a branch's results."""
        wide = int((self.counts <= width).sum())
        least = np.zeros(len(self.counts))
        last = branch.layers[-1]
        if last in self.prices.layers[join].predecessors:
            least = np.min([self.prices.move(last, join, place)[:wide].min(axis=0) for place in PLACES[leave:]], axis=0)
        if branch.tail is not None:
            least = least + sum(self._least(part, join, width, leave) for part in branch.tail.branches)
        return least

    def _to_join(
        self, branch: Series, fork: int, join: int, slot: GroupShape, leave: Locality, width: int | None, beside: bool
    ) -> LabelSet:
        """Returns a branch in a slot, and the transfer of its results to the join."""
        last, counts = branch.layers[-1], len(self.counts)
        ways = self._series(branch, fork, slot, beside)
        wide = int((self.counts <= width).sum()) if width else counts
        before, after = (x.ravel() for x in np.indices((counts, wide)))
        moved = np.zeros(len(before))
        if last in self.prices.layers[join].predecessors:
            moved = self.prices.move(last, join, leave)[:, :wide].ravel()
        none = np.zeros(len(before))
        rest = LabelSet(before, after, none, none, moved, moved * self.counts[after], moved, lambda _: iter(()))
        if branch.tail is not None:
            rest = self._together(
                rest, self._branches(branch.tail, last, join, (slot[0], SAME_START), leave, beside), beside
            )
        return self._then(ways, rest, beside)

    def _region(self, region: NonSeriesParallel, fork: int, join: int, slot: GroupShape) -> LabelSet:
        """Returns labels of the region's layers, all on one GPU count."""
        self.complete = False
        rows = 1 if fork == INPUT else len(self.counts)
        wide = int((self.counts <= slot[0]).sum())
        before, option, after = (x.ravel() for x in np.indices((rows, wide, wide)))
        forward = backward = work = np.zeros(len(before))
        for layer in (*region.layers, join):
            here = after if layer == join else option
            moved = np.zeros(len(before))
            for source in self.prices.layers[layer].predecessors or (INPUT,):
                place = slot[1] if source == fork else SAME_START
                moved = (
                    moved
                    + self.prices.move(source, layer, place)[
                        0 * here if source == INPUT else before if source == fork else option, here
                    ]
                )
            own = self.prices.own[layer][here]
            ahead = moved / 2 + self.prices.forward[layer][here]
            forward, backward, work = (
                forward + ahead,
                backward + moved + own - ahead,
                work + (moved + own) * self.counts[here],
            )

        def trace(row: int) -> Iterator[Choice]:
            yield from (Choice(layer, int(option[row]), 0) for layer in region.layers)
            yield Choice(join, int(after[row]), 0)

        return LabelSet(before, after, forward, backward, 0 * work, work, forward + backward, trace)

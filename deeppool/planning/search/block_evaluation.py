"""Exact cost of a block between one GPU count of its fork and one of its join.

Of the partitions whose lower bound is below the best time so far, first each branch's fastest plans are tried. Where
that leaves a gap between bound and time, sharper bounds follow, and all plans that trade forward for backward.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from deeppool.costs.table import Floats
from deeppool.planning.search.branch_bounds import BranchBounds, pareto_points
from deeppool.planning.search.gpu_partition import GpuGroup
from deeppool.planning.search.label_bundle import EMPTY_PLAN, NO_LABELS, LabelBundle, bundle_of, concatenate
from deeppool.planning.search.limited_costs import ROUNDING
from deeppool.planning.search.shortest_path import INFEASIBLE, Choice, ExhaustedError, PartialPlan

if TYPE_CHECKING:
    from deeppool.planning.search.parallel_block import BlockStep

MOST_TRIED = 4
"""Partitions that a search without proof evaluates between two GPU counts, those of the least bounds."""


class BlockEvaluation:
    """Evaluates one block between one GPU count of its fork and one of its join."""

    def __init__(self, crossing: "BlockStep", before: int, after: int) -> None:
        """Orders the arrangements by their bounds."""
        self.crossing, self.before, self.after = crossing, before, after
        self.own = float(crossing.own[before, after])
        self.slack = float(crossing.slack[before, after])
        self.bounds: Floats = crossing.bounds.time[:, before, after] - self.own
        """Per arrangement, seconds without the join that no way can beat; inf where there is none."""
        self.order = [index for index in self.bounds.argsort(kind="stable").tolist() if self.bounds[index] < math.inf]
        """Arrangements that can be at all, by their bounds."""
        self._stairs: dict[int, list[tuple[float, float, None]]] = {}

    def best(self) -> PartialPlan:
        """Returns the best lanes, with what none can beat."""
        crossing, best, cap = self.crossing, NO_LABELS, math.inf
        for thorough in (False, True):
            if thorough and crossing.crossings.budget.exhausted:
                break
            for index in self.order if crossing.crossings.proving else self.order[:MOST_TRIED]:
                if self._is_ruled_out(index, cap * (1 - ROUNDING), thorough):
                    continue
                try:
                    ways = self._arranged(index, cap, self.slack, thorough)
                except ExhaustedError:
                    continue
                if thorough or not crossing.priced:
                    tight = ways.settled if thorough else False
                    bound = np.where(tight, ways.time, ways.lower + ways.moved).min(initial=cap)
                    self.bounds[index] = max(self.bounds[index], bound)
                if len(ways.parts) and float(ways.time.min()) < cap:
                    best = ways.keep(np.array([ways.time.argmin()]))
                    cap = float(best.time[0])
        if not best.parts:
            return INFEASIBLE
        lower = self.bounds.min() if crossing.exact else crossing.lower[self.before, self.after] - self.own
        return self.passage(best, 0)._replace(lower=min(cap, float(lower)) + self.own)

    def _is_ruled_out(self, index: int, cap: float, thorough: bool) -> bool:
        """Whether no way in an arrangement is within the cap, with better bounds where these do not decide."""
        crossing = self.crossing
        if self.bounds[index] < cap and thorough and not crossing.bounds.sharp:
            crossing.sharpen()
            self.bounds = np.maximum(self.bounds, crossing.bounds.time[:, self.before, self.after] - self.own)
        if self.bounds[index] < cap and not thorough:
            self.bounds[index] = max(self.bounds[index], self._relaxed(index))
        return bool(self.bounds[index] >= cap)

    def ways(self, cap: float, *, thorough: bool) -> LabelBundle:
        """Returns ways through the branches, without the join, in any arrangement."""
        return self._within(cap, self.slack, thorough)

    def passage(self, ways: LabelBundle, index: int) -> PartialPlan:
        """Returns one of the ways, with the join."""
        crossing, ends = self.crossing, (self.before, self.after)
        time = float(ways.time[index]) + self.own
        spent = float(ways.moved[index] * crossing.spent_share[self.after])
        own_forward, _, own_added = crossing.own_parts[:, ends[0], ends[1]].tolist()
        forward = float(ways.forward[index] + (ways.moved[index] - spent) / 2 + own_forward)
        choice = (Choice(crossing.join, self.after, 0),) if crossing.has_join else ()
        added = float(ways.added[index]) + spent + own_added
        return PartialPlan(time, forward, time, (*ways.parts[index], *choice), added)

    def _within(self, cap: float, slack: float, thorough: bool) -> LabelBundle:
        return concatenate(
            [self._arranged(index, cap, slack, thorough) for index in self.order if self.bounds[index] <= cap]
        )

    def _relaxed(self, index: int) -> float:
        """Returns a tighter bound of one arrangement: max T + sum X, whatever the split into forward and backward."""
        lanes = [
            lane for lane in self.crossing.division.used[index].tolist() if lane < len(self.crossing.division.lanes)
        ]
        stairs = [self._stair(lane) for lane in lanes]
        if not all(stairs):
            return math.inf
        first = max(stair[0][0] for stair in stairs)
        best = math.inf
        for threshold in sorted({first, *(time for stair in stairs for time, *_ in stair if time > first)}):
            moved = sum(next(x for time, x, _ in reversed(stair) if time <= threshold) for stair in stairs)
            if moved <= self.slack:
                best = min(best, threshold + moved)
        return best

    def _stair(self, lane: int) -> list[tuple[float, float, None]]:
        """Returns the bounds of T and X of all branches of a lane, T ascending and X descending."""
        if lane not in self._stairs:
            branches, slot = self.crossing.division.lanes[lane]
            stair: list[tuple[float, float, None]] = [(0.0, 0.0, None)]
            for branch in branches:
                reach = self.crossing.reaches[branch]
                ends = reach.ends(reach.way.lower, slot, self.before, self.after)
                stair = pareto_points((a + time, b + moved, None) for a, b, _ in stair for time, moved, _ in ends)
            self._stairs[lane] = stair
        return self._stairs[lane]

    def _arranged(self, index: int, cap: float, slack: float, thorough: bool) -> LabelBundle:
        """Returns ways through the branches in one arrangement, within the cap and the slack."""
        division, reaches = self.crossing.division, self.crossing.reaches
        lanes = [
            (lane, division.lanes[kind][1])
            for lane, kind in zip(division.arrangements[index], division.used[index].tolist(), strict=False)
        ]
        # What the branches still to come will at least add to the transfers.
        least = sum(float(reaches[branch].least[slot, self.after]) for lane, slot in lanes for branch in lane.branches)
        additive = sum(self._additive(branch, slot) for lane, slot in lanes for branch in lane.branches)
        folded = EMPTY_PLAN
        for lane, slot in lanes:
            bundle = EMPTY_PLAN
            # And what those in the same lane will take besides.
            rest = sum(self._excess(reaches[branch], slot) for branch in lane.branches)
            for branch in lane.branches:
                least -= float(reaches[branch].least[slot, self.after])
                additive -= self._additive(branch, slot)
                rest -= self._excess(reaches[branch], slot)
                room = cap - additive - rest
                done = float((bundle.lower + bundle.moved + bundle.added).min(initial=math.inf))
                ways = self._branch(reaches[branch], lane, slot, room - done, slack - least, thorough)
                bundle = bundle.together(ways, side_by_side=False, cap=room, slack=slack - least)
            folded = folded.together(bundle, side_by_side=True, cap=cap - additive, slack=slack - least)
            if thorough:
                self.crossing.crossings.budget.spend(len(folded.parts))
        return folded

    def _excess(self, reach: BranchBounds, slot: int) -> float:
        """Returns the price that no way through a branch can beat, less the least of what adds up."""
        additive = reach.additive[slot, min(self.before, reach.additive.shape[1] - 1), self.after]
        return float(reach.total[slot, self.before, self.after] - additive)

    def _additive(self, branch: int, slot: int) -> float:
        """Returns the least price of what adds up over branches: transfers to the join, and GPU-seconds."""
        additive = self.crossing.reaches[branch].additive
        return float(additive[slot, min(self.before, additive.shape[1] - 1), self.after])

    def _lasts(self, reach: BranchBounds, slot: int) -> Iterable[int]:
        """Returns counts of a branch's last layer whose fastest ways no other count beats in time and transfers."""
        if reach.tail is not None:
            # What a tail takes is only bounded so far, and a bound rules nothing out.
            return range(len(self.crossing.crossings.counts))
        settled: set[int] = set()
        while True:
            lasts = [last for *_, last in reach.ends(reach.way.guess, slot, self.before, self.after)]
            if settled.issuperset(lasts):
                return lasts
            # Evaluating one may make it slower than another one that it ruled out.
            for last in lasts:
                reach.way.settle(slot, self.before, last)
            settled.update(lasts)

    def _branch(
        self, reach: BranchBounds, lane: GpuGroup, slot: int, cap: float, slack: float, thorough: bool
    ) -> LabelBundle:
        """Returns ways through one branch: the fastest ones to its efficient last counts, or all."""
        found = []
        for last in range(len(self.crossing.crossings.counts)) if thorough else self._lasts(reach, slot):
            moved = float(reach.moved[slot, last, self.after])
            if not (moved <= slack and reach.way.lower[slot, self.before, last] + moved <= cap):
                continue
            if thorough:
                passages = reach.way.front(slot, self.before, last, cap - moved)
            else:
                passages = [reach.way.settle(slot, self.before, last)]
            # A non-series-parallel region may promise a way that its search then does not find.
            passages = [passage for passage in passages if passage.time < math.inf]
            ways = bundle_of(passages, moved, reach.layers, lane.start)
            if reach.tail is not None and passages:
                tail, layers = reach.tail
                room = cap - moved - min(passage.lower for passage in passages)
                rest = BlockEvaluation(tail.crossing(slot), last, self.after)._within(room, slack - moved, thorough)
                rest = rest.elsewhere(layers, lane.start)
                ways = ways.together(rest, side_by_side=False, cap=cap, slack=slack)
            found.append(ways)
        return concatenate(found)

"""Exact cost of a block between one GPU count of its fork and one of its join.

Of the partitions whose lower bound is below the best time so far, first each branch's fastest plans are tried. Where
that leaves a gap between bound and time, all plans follow that trade forward for backward, within a budget.
"""

import math
from collections.abc import Sequence

import numpy as np

from deeppool.costs.table import Floats
from deeppool.planning.search.block_bounds import BlockBounds, BranchBounds
from deeppool.planning.search.labels import EMPTY_PLAN, INFEASIBLE, Choice, Labels, PartialPlan, concatenated, label_of
from deeppool.planning.search.limited_costs import ROUNDING
from deeppool.planning.search.shortest_path import Budget, ExhaustedError

MOST_TRIED = 2
"""Partitions that a search without proof evaluates between two GPU counts, those of the least bounds.

Others follow while none has a way, as the limit of the join may forbid it in all of these.
"""


class BlockEvaluation:
    """Evaluates one block between one GPU count of its fork and one of its join."""

    def __init__(self, block: BlockBounds, before: int, after: int, budget: Budget) -> None:
        """Orders the partitions by their bounds."""
        self.block, self.before, self.after, self.budget = block, before, after, budget
        self.own = float(block.own[before, after])
        self.slack = float(block.join.slack[before, after])
        self.bounds: Floats = block.time[:, before, after] - self.own
        """Per partition, seconds without the join that no way can beat; inf where there is none."""
        order = self.bounds[: block.division.tried].argsort(kind="stable").tolist()
        self.order = [index for index in order if self.bounds[index] < math.inf]
        """Partitions to try that can be at all, by their bounds."""
        # Per branch and GPU group the seconds that _lasts reckoned with, and what it returned.
        self._known: dict[tuple[BranchBounds, int], tuple[Floats, Sequence[int]]] = {}

    def best(self) -> tuple[PartialPlan, float]:
        """Returns the best way found, and what none can beat."""
        best, cap = concatenated([]), math.inf
        few = MOST_TRIED if self.budget.exhausted else len(self.order)
        for thorough in (False, True) if self.block.exact and not self.budget.exhausted else (False,):
            for number, index in enumerate(self.order):
                if number >= few and best.plans:
                    break
                if self.bounds[index] >= cap * (1 - ROUNDING):
                    continue
                try:
                    ways = self._within(index, cap, self.slack, thorough=thorough)
                except ExhaustedError:
                    continue
                least = float(ways.time.min(initial=math.inf))
                if thorough:
                    self.bounds[index] = max(self.bounds[index], min(cap, least))
                if least < cap:
                    best, cap = ways.keep(np.array([ways.time.argmin()])), least
        if not best.plans:
            return INFEASIBLE, math.inf if self.block.exact else float(self.block.lower[self.before, self.after])
        lower = min(cap, float(self.bounds.min())) + self.own
        found = self.joined(best)
        (forward, backward, added, _), (parts,) = found.values[:, 0].tolist(), found.plans
        return PartialPlan(forward, backward, added, parts), min(forward + backward + added, lower)

    def labels(self, cap: float, slack: float | None = None, *, thorough: bool = True) -> Labels:
        """Returns ways through the branches within the cap, without the join, in any partition."""
        slack = self.slack if slack is None else slack
        near = [index for index in self.order if self.bounds[index] <= cap]
        return concatenated([self._within(index, cap, slack, thorough=thorough) for index in near]).efficient()

    def joined(self, ways: Labels) -> Labels:
        """Returns ways with the join."""
        forward, backward, added, moved = ways.values
        spent = moved * self.block.branches[0].spent_share[self.after]
        half = (moved - spent) / 2
        values = np.stack([forward + half, backward + half, added + spent])
        values += self.block.join.seconds[:, self.before, self.after, None]
        layer = self.block.join.layer
        choice = () if layer is None else (Choice(layer, self.after, 0),)
        return Labels(np.concatenate([values, moved[None] * 0]), [(*plan, *choice) for plan in ways.plans])

    def _within(self, index: int, cap: float, slack: float, *, thorough: bool) -> Labels:
        """Returns ways through the branches in one partition, within the cap and the slack."""
        groups = list(self.block.groups_of(index))
        # What the branches to come take at least: by themselves, of what adds up, and of that as transfers.
        least = {
            member: self.block.branches[member].at_least(slot, self.before, self.after)
            for members, slot, _ in groups
            for member in members
        }
        additive, arriving = (sum(numbers) for numbers in list(zip(*least.values(), strict=True))[1:])
        # Evaluating others may have made these slower than was known when the bounds were found.
        if additive + max(sum(least[member][0] for member in members) for members, _, _ in groups) > cap:
            return concatenated([])
        folded = EMPTY_PLAN
        for members, slot, start in groups:
            group = EMPTY_PLAN
            rest = sum(least[member][0] for member in members)
            for member in members:
                alone, added, moved = least[member]
                rest, additive, arriving = rest - alone, additive - added, arriving - moved
                room, most = cap - additive - rest, slack - arriving
                done = float(group.time.min())
                ways = self._branch(self.block.branches[member], slot, start, room - done, most, thorough=thorough)
                group = group.together(ways, side_by_side=False, cap=room, slack=most)
                if not group.plans:
                    return group
            if folded is EMPTY_PLAN:
                folded = group
            else:
                folded = folded.together(group, side_by_side=True, cap=cap - additive, slack=slack - arriving)
            if thorough:
                self.budget.spend(len(folded.plans))
            if not folded.plans:
                break
        return folded

    def _lasts(self, branch: BranchBounds, slot: int) -> Sequence[int]:
        """Returns counts of a branch's last layer whose fastest ways no other count beats in time and transfers."""
        if branch.tail:
            # What a tail takes is only bounded so far, and a bound rules nothing out.
            return range(branch.moved.shape[1])
        guess, lasts = self._known.get((branch, slot), (None, ()))
        # Evaluating one may make it slower, perhaps than another one that it ruled out.
        while branch.path.guess is not guess:
            guess = branch.path.guess
            lasts = branch.ends(slot, self.before, self.after).tolist()
            for last in lasts:
                branch.path.settle(slot, self.before, last)
            self._known[branch, slot] = guess, lasts
        return lasts

    def _branch(
        self, branch: BranchBounds, slot: int, start: int, cap: float, slack: float, *, thorough: bool
    ) -> Labels:
        """Returns ways through one branch: the fastest ones to its efficient last counts, or all."""
        found = []
        for last in range(branch.moved.shape[1]) if thorough else self._lasts(branch, slot):
            moved = float(branch.moved[slot, last, self.after])
            if not (moved <= slack and branch.path.lower[slot, self.before, last] + moved <= cap):
                continue
            if thorough:
                steps = branch.path.labels(slot, self.before, last, cap - moved)
                ways = Labels(np.concatenate([steps.values, np.zeros((1, len(steps.plans)))]), steps.plans)
            else:
                ways = label_of(branch.path.settle(slot, self.before, last))
            ways = ways.placed(branch.offset, start, moved)
            if branch.tail and ways.plans:
                tail = BlockEvaluation(branch.tail[slot], last, self.after, self.budget)
                rest = tail.labels(cap - float(ways.time.min()), slack - moved, thorough=thorough)
                ways = ways.together(rest.placed(branch.tail_offset, start), side_by_side=False, cap=cap, slack=slack)
            found.append(ways)
        return concatenated(found)

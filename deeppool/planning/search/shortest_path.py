"""Shortest paths through a series of layers, on several sets of GPUs at once.

Between two layers lies a *step*: a transfer, or a block of branches (see ``parallel_block``). Steps say at first what
no way through them can beat, for all GPU counts before and after them; a step on the shortest path is then evaluated,
which may make it longer, until the shortest path is evaluated all along: no other one can then be shorter.

    layer      0       1       2
    8 GPUs     o       o ===== o     === the shortest path
    4 GPUs     o ===== o       o
    1 GPU      o       o       o
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from deeppool.costs.communication import Locality
from deeppool.costs.table import Floats
from deeppool.planning.search.label_sums import StepLabels, pairs
from deeppool.planning.search.labels import INFEASIBLE, Choice, PartialPlan, Parts
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.pareto import efficient_rows


class ExhaustedError(Exception):
    """Raised where a proof of optimality would take too long."""


class Budget:
    """Bounds the work that the search spends on proving the last fraction of a per cent."""

    def __init__(self, pairs: int) -> None:
        """Allows a number of pairs of labels."""
        self.left = pairs

    def spend(self, pairs: int) -> None:
        """Counts pairs that are about to be tried.

        Raises:
            ExhaustedError: there are too many of them.
        """
        self.left -= pairs
        if self.exhausted:
            raise ExhaustedError

    @property
    def exhausted(self) -> bool:
        """Whether nothing more is to be proved."""
        return self.left <= 0


class PathStep(Protocol):
    """Protocol of the step from a layer of a series to the next one, included; S sets of GPUs, or 1 for all of them."""

    lower: Floats
    """(S, before, after) seconds that no way can beat; inf where the limit permits none."""
    guess: Floats
    """(S, before, after) seconds of the best way found; ``lower`` where there is none yet, or none better."""
    version: int
    """Counter that grows whenever one of them changes."""
    exact: bool
    """Whether an evaluation finds the best way, unless its proof takes too long."""

    def least_of(self, number: int) -> Floats:
        """Returns (S, before, after) of one number of labels what no way can beat."""

    def settle(self, slot: int, before: int, after: int) -> PartialPlan:
        """Evaluates the step between two GPU counts and returns the best way found."""

    def labels(self, slot: int, caps: Floats, budget: Budget) -> StepLabels:
        """Returns all ways within (before, after) seconds that trade forward for backward or GPU-seconds."""


class Edge:
    """PathStep to a layer from the one that it reads."""

    version, exact = 0, True

    def __init__(self, prices: LimitedCosts, source: int, layer: int, places: Sequence[Locality]) -> None:
        """Takes the locality of the layer's GPUs relative to the source's: per set of GPUs, or once for all of them."""
        edges = [prices.edge(source, layer, place) for place in places]
        self.layer = layer
        self.lower: Floats = edges[0][0][None] if len(edges) == 1 else np.stack([edge[0] for edge in edges])
        self.guess = self.lower
        self._forward, self._added = [edge[1] for edge in edges], [edge[2] for edge in edges]

    def least_of(self, number: int) -> Floats:
        """Returns (S, before, after) of one number of its labels: seconds in a pass, or the price of GPU-seconds."""
        forward, added = np.stack(self._forward), np.stack(self._added)
        return np.where(np.isfinite(self.lower), (forward, self.lower - forward - added, added)[number], np.inf)

    def settle(self, slot: int, before: int, after: int) -> PartialPlan:
        """Returns the transfer and the layer."""
        slot = slot if len(self._forward) > 1 else 0
        forward, added = float(self._forward[slot][before, after]), float(self._added[slot][before, after])
        backward = float(self.lower[slot, before, after]) - forward - added
        return PartialPlan(forward, backward, added, (Choice(self.layer, after, 0),))

    def labels(self, slot: int, caps: Floats, budget: Budget) -> StepLabels:
        """Returns the only way between each two GPU counts."""
        slot = slot if len(self._forward) > 1 else 0
        before, after = np.nonzero(np.isfinite(self.lower[slot]) & (self.lower[slot] <= caps))
        values = np.stack([self.least_of(number)[slot, before, after] for number in range(3)])
        return StepLabels(before, after, values, [(Choice(self.layer, option, 0),) for option in after.tolist()])


class PathTable:
    """Best plans of a series, from each GPU count before it to each of its last layer.

    S sets of GPUs at once: each is a slot.
    """

    def __init__(self, steps: Sequence[tuple[PathStep, int]], fits: Floats, budget: Budget) -> None:
        """Prices all ways.

        Args:
            steps: each with what to add to its layers.
            fits: (S, 1, K) 0 where a GPU count fits into a slot, else inf.
            budget: budget of :meth:`labels`.
        """
        self.steps, self._fits, self._budget = steps, fits, budget
        # One layer is the only way between two counts.
        self._alone = len(steps) == 1 and isinstance(steps[0][0], Edge)
        self._versions = [-1] * len(steps)
        self._times: list[Floats] = [np.empty(0)] * len(steps)
        self._lower: Floats | None = None
        self._least: dict[int, Floats] = {}
        self._settled: dict[tuple[int, int, int], PartialPlan] = {}
        self._labels: dict[tuple[int, int, int], tuple[float, StepLabels]] = {}
        """Per ends the most seconds that were asked for, and the ways."""
        self._refresh()

    @property
    def guess(self) -> Floats:
        """(S, before, last) seconds that the search reckons with."""
        return self._times[-1]

    @property
    def lower(self) -> Floats:
        """(S, before, last) seconds that no way can beat."""
        if all(step.lower is step.guess for step, _ in self.steps):
            return self._times[-1]
        if self._lower is None:
            first = self.steps[0][0].lower + self._fits
            self._lower = functools.reduce(
                lambda ways, step: shortest(ways, step[0].lower) + self._fits, self.steps[1:], first
            )
        return self._lower

    def least_of(self, number: int) -> Floats:
        """Returns (S, before, last) of one number of labels what no way can beat."""
        if number not in self._least:
            first, *others = (step.least_of(number) for step, _ in self.steps)
            self._least[number] = functools.reduce(
                lambda ways, step: shortest(ways, step) + self._fits, others, first + self._fits
            )
        return self._least[number]

    def settle(self, slot: int, before: int, last: int) -> PartialPlan:
        """Returns the best way found with these ends; its steps are evaluated."""
        while (slot, before, last) not in self._settled:
            if not np.isfinite(self.guess[slot, before, last]):
                return INFEASIBLE
            ends = itertools.pairwise(self._path(slot, before, last))
            ways = [step.settle(slot, *pair) for (step, _), pair in zip(self.steps, ends, strict=True)]
            if not self._refresh():
                forward, backward, added, parts = zip(*ways, strict=True)
                inner = tuple((part, layers, 0) for part, (_, layers) in zip(parts, self.steps, strict=True))
                self._settled[slot, before, last] = PartialPlan(sum(forward), sum(backward), sum(added), inner)
        return self._settled[slot, before, last]

    def labels(self, slot: int, before: int, last: int, cap: float) -> StepLabels:
        """Returns all ways with these ends within ``cap`` seconds that trade forward for backward or GPU-seconds.

        Raises:
            ExhaustedError: there are more pairs of labels than the budget allows.
        """
        most, found = self._labels.get((slot, before, last), (-math.inf, None))
        if found is None or most < cap:
            found = self._within(slot, before, last, cap)
            self._labels[slot, before, last] = cap, found
        return found

    def _within(self, slot: int, before: int, last: int, cap: float) -> StepLabels:
        *numbers, parts = self.settle(slot, before, last) if self._alone else INFEASIBLE
        if parts:
            self._budget.spend(1)
            return StepLabels(np.array([before]), np.array([last]), np.array(numbers)[:, None], [parts])
        after, values, plans = np.array([before]), np.zeros((3, 1)), list[Parts]([()])
        for (step, layers), rest in zip(self.steps, self._rests(slot, last), strict=True):
            least = np.full(step.lower.shape[1], np.inf)
            np.minimum.at(least, after, values.sum(axis=0))
            with np.errstate(invalid="ignore"):
                found = step.labels(slot, cap - least[:, None] - rest, self._budget)
            left, right = pairs(after, found.before)
            self._budget.spend(len(left))
            sums, key = values[:, left] + found.values[:, right], found.after[right]
            near = np.nonzero(sums.sum(axis=0) + rest[key] <= cap)[0]
            kept = near[efficient_rows(key[near], *sums[:, near])]
            after, values = key[kept], sums[:, kept]
            rows = zip(left[kept].tolist(), right[kept].tolist(), strict=True)
            plans = [(*plans[a], (found.plans[b], layers, 0)) for a, b in rows]
        return StepLabels(np.full(len(after), before), after, values, plans)

    def _rests(self, slot: int, last: int) -> list[Floats]:
        """Returns, after each step and per GPU count, the seconds that the later steps take at least."""
        fits = self._fits[slot, 0]
        rest: Floats = np.full(len(fits), np.inf)
        rest[last] = 0.0
        found = [rest]
        for step, _ in self.steps[:0:-1]:
            rest = (step.lower[slot if len(step.lower) > 1 else 0] + rest).min(axis=1) + fits
            found.append(rest)
        return found[::-1]

    def _path(self, slot: int, before: int, last: int) -> list[int]:
        """Returns the GPU counts before, between and after the steps of the shortest way."""
        path = [last]
        for (step, _), times in zip(self.steps[:0:-1], self._times[-2::-1], strict=True):
            prices = step.guess[slot if len(step.guess) > 1 else 0]
            path.append(int((times[slot, before] + prices[:, path[-1]]).argmin()))
        return [before, *reversed(path)]

    def _refresh(self) -> bool:
        """Lengthens the ways whose steps turned out more expensive; returns whether there were any."""
        changed = False
        for index, (step, _) in enumerate(self.steps):
            if changed or self._versions[index] != step.version:
                changed = True
                self._versions[index] = step.version
                ways = shortest(self._times[index - 1], step.guess) if index else step.guess
                self._times[index] = ways + self._fits
                self._lower = None
        return changed


def shortest(before: Floats, step: Floats) -> Floats:
    """Returns (S, …, a, c): the shortest of all two-step paths (S, …, a, b), (S or 1, …, b, c)."""
    if before.ndim == 3 and before.shape[:2] == (1, 1):
        best: Floats = (before[0, 0][:, None] + step[0]).min(axis=0)[None, None]
        return best
    best = before[..., 0, None] + step[..., None, 0, :]
    for middle in range(1, before.shape[-1]):
        np.minimum(best, before[..., middle, None] + step[..., None, middle, :], out=best)
    return best

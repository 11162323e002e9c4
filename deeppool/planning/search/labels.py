"""Labels: plans of a part of a model, each with the numbers by which plans are compared.

A *label* is one way to compute a part: seconds forward, seconds backward, price of its GPU-seconds, and for branches
the price that their join pays to fetch their results. Parts follow one another, or run side by side on groups of GPUs:

                one after another      side by side
    forward            +                    max
    backward           +                    max
    GPU-seconds        +                     +
    transfers          +                     +

Of labels with the same ends only those stay that no other one beats in all numbers (see ``pareto``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from deeppool.costs.table import Floats
from deeppool.planning.search.pareto import Integers, efficient_rows


class Choice(NamedTuple):
    """GPU count and first GPU of one layer."""

    layer: int
    option: int
    """Index of its GPU count."""
    start: int
    """First GPU."""


Parts = tuple[Choice | tuple["Parts", int, int], ...]
"""Choices, and parts of a model with the offsets to add to their layers and to their first GPUs."""


def choices_of(parts: Parts, layers: int = 0, start: int = 0) -> Iterator[Choice]:
    """Yields every choice of a plan."""
    for part in parts:
        if isinstance(part, Choice):
            yield Choice(part.layer + layers, part.option, part.start + start)
        else:
            inner, further, later = part
            yield from choices_of(inner, layers + further, start + later)


Plans = tuple[tuple[int, ...], tuple[int, ...]]
"""Per layer, the index of its GPU count, and its first GPU."""


def plan_of(parts: Parts) -> Plans:
    """Returns the choices of all layers of a model."""
    choices = sorted(choices_of(parts))
    return tuple(choice.option for choice in choices), tuple(choice.start for choice in choices)


class PartialPlan(NamedTuple):
    """One label of some layers that no join outside has to fetch."""

    forward: float
    """Seconds in the forward pass."""
    backward: float
    """Seconds in the backward pass."""
    added: float
    """Price of the GPU-seconds."""
    parts: Parts

    @property
    def time(self) -> float:
        """Seconds, and the price of the GPU-seconds."""
        return self.forward + self.backward + self.added


INFEASIBLE = PartialPlan(np.inf, np.inf, 0.0, ())


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Labels with the same ends, as columns."""

    values: Floats
    """(4, n) forward, backward, price of GPU-seconds, price of the transfers to the join."""
    plans: Sequence[Parts]

    @property
    def time(self) -> Floats:
        """Price in all."""
        total: Floats = self.values.sum(axis=0)
        return total

    def keep(self, rows: Integers) -> "Labels":
        """Returns some of the labels."""
        return Labels(self.values[:, rows], [self.plans[row] for row in rows.tolist()])

    def efficient(self) -> "Labels":
        """Returns the labels that no other one beats."""
        return self.keep(efficient_rows(None, *self.values)) if len(self.plans) > 1 else self

    def together(self, other: "Labels", *, side_by_side: bool, cap: float, slack: float) -> "Labels":
        """Returns the efficient pairs of a label of each: at most ``cap`` in all, ``slack`` of it transfers."""
        first, second = self.values[:, :, None], other.values[:, None, :]
        pairs = first + second
        if side_by_side:
            np.maximum(first[:2], second[:2], out=pairs[:2])
        left, right = np.nonzero((pairs.sum(axis=0) <= cap) & (pairs[3] <= slack))
        values = pairs[:, left, right]
        rows = efficient_rows(None, *values)
        ends = zip(left[rows].tolist(), right[rows].tolist(), strict=True)
        return Labels(values[:, rows], [self.plans[a] + other.plans[b] for a, b in ends])

    def placed(self, layers: int, start: int, moved: float = 0.0) -> "Labels":
        """Returns the labels for equal layers further on, on later GPUs, with the price of a transfer from them."""
        values = self.values + np.array([[0.0], [0.0], [0.0], [moved]])
        return Labels(values, [((plan, layers, start),) for plan in self.plans])


EMPTY_PLAN = Labels(np.zeros((4, 1)), [()])
"""One label of no layers."""


def label_of(plan: PartialPlan) -> Labels:
    """Returns a plan as the only label; none where it is infeasible."""
    values = np.array([[plan.forward], [plan.backward], [plan.added], [0.0]])
    return Labels(values, [plan.parts]) if plan.parts else concatenated([])


def concatenated(found: Sequence[Labels]) -> Labels:
    """Returns all labels of several parts."""
    if len(found) == 1:
        return found[0]
    values = np.concatenate([np.zeros((4, 0)), *(labels.values for labels in found)], axis=1)
    return Labels(values, [plan for labels in found for plan in labels.plans])

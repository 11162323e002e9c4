"""Labels of several branches together, as arrays."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from deeppool.costs.table import Floats
from deeppool.planning.search.limited_costs import ROUNDING
from deeppool.planning.search.shortest_path import PartialPlan

Parts = tuple[tuple[PartialPlan, int, int], ...]
"""The branches' passages, with what to add to their layers and first GPUs."""


@dataclass(frozen=True, slots=True)
class LabelBundle:
    """Labels of some branches, between one GPU count of the fork and one of the join."""

    forward: Floats
    """Seconds of each way in the forward pass."""
    backward: Floats
    """Seconds of each way in the backward pass."""
    moved: Floats
    """Price that the join pays to fetch the results."""
    added: Floats
    """Price of the GPU-seconds."""
    lower: Floats
    """Seconds that no ways with the same ends and GPU-seconds can beat, forward and backward."""
    settled: NDArray[np.bool_]
    """Whether the times of the branches are exact rather than bounds."""
    parts: list[Parts]

    @property
    def time(self) -> Floats:
        """Price in all."""
        total: Floats = self.forward + self.backward + self.moved + self.added
        return total

    def keep(self, which: NDArray[np.intp]) -> "LabelBundle":
        """Returns some of the ways."""
        return LabelBundle(
            self.forward[which],
            self.backward[which],
            self.moved[which],
            self.added[which],
            self.lower[which],
            self.settled[which],
            [self.parts[index] for index in which.tolist()],
        )

    def together(self, other: "LabelBundle", *, side_by_side: bool, cap: float, slack: float) -> "LabelBundle":
        """Returns the efficient pairs of a way of each within ``cap`` seconds, ``slack`` of them for the join."""
        both = np.maximum.outer if side_by_side else np.add.outer
        moved = np.add.outer(self.moved, other.moved)
        added = np.add.outer(self.added, other.added)
        lower = both(self.lower, other.lower)
        first, second = np.nonzero((lower + moved + added <= cap) & (moved <= slack))
        return LabelBundle(
            both(self.forward, other.forward)[first, second],
            both(self.backward, other.backward)[first, second],
            moved[first, second],
            added[first, second],
            lower[first, second],
            np.logical_and.outer(self.settled, other.settled)[first, second],
            [self.parts[a] + other.parts[b] for a, b in zip(first.tolist(), second.tolist(), strict=True)],
        ).efficient()

    def efficient(self) -> "LabelBundle":
        """Returns the ways that no other one beats in any of its numbers."""
        if len(self.parts) < 2:
            return self
        values = np.stack([self.forward, self.backward, self.moved, self.lower, self.added], axis=1)
        kept: list[int] = []
        for index in np.lexsort(values.T).tolist():
            if not kept or not (values[kept] <= values[index]).all(axis=1).any():
                kept.append(index)
        return self.keep(np.array(kept))

    def elsewhere(self, layers: int, start: int) -> "LabelBundle":
        """Returns the same ways for an equal part of the model, on other GPUs."""
        return replace(
            self, parts=[tuple((passage, a + layers, b + start) for passage, a, b in way) for way in self.parts]
        )


EMPTY_PLAN = LabelBundle(np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1), np.ones(1, dtype=bool), [()])
"""One way that takes no time."""
NO_LABELS = EMPTY_PLAN.keep(np.array([], dtype=np.intp))


def bundle_of(passages: list[PartialPlan], moved: float, layers: int, start: int) -> LabelBundle:
    """Returns the labels of plans of one branch whose results the join fetches in ``moved`` seconds."""
    forward = np.array([passage.forward for passage in passages])
    time = np.array([passage.time for passage in passages])
    added = np.array([passage.added for passage in passages])
    lower = np.array([passage.lower for passage in passages])
    exact = time <= lower * (1 + ROUNDING)
    parts: list[Parts] = [((passage, layers, start),) for passage in passages]
    return LabelBundle(forward, time - forward - added, np.full(len(time), moved), added, lower - added, exact, parts)


def concatenate(bundles: list[LabelBundle]) -> LabelBundle:
    """Returns all ways of all bundles."""
    if len(bundles) == 1:
        return bundles[0]
    if not bundles:
        return NO_LABELS
    return LabelBundle(
        np.concatenate([bundle.forward for bundle in bundles]),
        np.concatenate([bundle.backward for bundle in bundles]),
        np.concatenate([bundle.moved for bundle in bundles]),
        np.concatenate([bundle.added for bundle in bundles]),
        np.concatenate([bundle.lower for bundle in bundles]),
        np.concatenate([bundle.settled for bundle in bundles]),
        [way for bundle in bundles for way in bundle.parts],
    )

"""Bounds of one branch of a block on every GPU group that it may have."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from deeppool.costs.table import Floats
from deeppool.planning.search.shortest_path import PathTable, shortest

if TYPE_CHECKING:
    from deeppool.planning.search.parallel_block import BatchedStep


@dataclass(frozen=True)
class BranchBounds:
    """Costs of one branch on every GPU group, with the transfer of its results to the join."""

    way: PathTable
    layers: int
    """Offset to add to the layers of ``way``."""
    moved: Floats
    """(S, last, join) price of the transfer from the branch's last layer; inf where that is not permitted."""
    tail: "tuple[BatchedStep, int] | None"
    total: Floats
    """(S, fork, join) lower bound of T + X."""
    least: Floats
    """(S, join) lower bound of X."""
    spent_share: Floats
    """(join,) share of X that is for GPU-seconds."""
    priced: bool
    """Whether GPU-seconds have a price."""

    @cached_property
    def additive(self) -> Floats:
        """(S, fork or 1, join) lower bound of what adds up over branches side by side: X and GPU-seconds."""
        least = self.least[:, None, :]
        if not self.priced:
            return least
        additive: Floats = self.passes[:, 2] + least * (1 - self.spent_share)
        return additive

    @cached_property
    def passes(self) -> Floats:
        """(S, 3, fork, join) lower bounds of F + X / 2, of B + X / 2 and of the price of GPU-seconds."""
        spent = np.where(np.isfinite(self.moved), self.moved, 0.0) * self.spent_share
        half = (self.moved - spent) / 2
        bound = np.stack([half, half, spent], axis=1)
        if self.tail is not None:
            bound = bound + self.tail[0].passes
        return shortest(self.way.passes, bound)

    @property
    def exact(self) -> bool:
        """Whether the branch contains no region."""
        return self.way.lower is self.way.guess and (self.tail is None or self.tail[0].lower is self.tail[0].guess)

    def ends(self, times: Floats, slot: int, before: int, after: int) -> list[tuple[float, float, int]]:
        """Returns T and X, T ascending and X descending, with the last count that has them.

        Args:
            times: (S, fork, last) of the ways: their bounds, or what the search reckons with.
            slot: index of the GPU group.
            before: count of the fork.
            after: count of the join.
        """
        times, moved = times[slot, before], self.moved[slot, :, after]
        if self.tail is not None:
            least = self.tail[0].least[slot, after]
            times, moved = times + (self.tail[0].lower[slot, :, after] - least), moved + least
        return pareto_points(zip(times.tolist(), moved.tolist(), range(len(times)), strict=True))


T = TypeVar("T")


def pareto_points(points: Iterable[tuple[float, float, T]]) -> list[tuple[float, float, T]]:
    """Returns the points that no other one beats in both numbers."""
    kept: list[tuple[float, float, T]] = []
    least = math.inf
    for point in sorted(points, key=lambda point: point[:2]):
        if point[1] < least and point[0] < math.inf:
            least = point[1]
            kept.append(point)
    return kept

"""Pareto fronts of (iteration time, GPU-seconds) whose points can be traced to the choices behind them.

A front is built from smaller ones by two operations: *either* (union) and *then* (every pair of points
added up). Dominated points are dropped at once. A front that outgrows its limit is thinned: of points
whose times lie within a factor of each other the one with the fewest GPU-seconds is kept, and the front's
``factor`` states by how much a lost point's time may be exceeded, never its GPU-seconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deeppool.base import cancellation
from deeppool.planning.search.shortest_path import Choice, PartialPlan

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """Points that no other point beats in both time and GPU-seconds; time ascends, ``work`` descends."""

    time: Floats
    """Seconds of each point."""
    work: Floats
    """GPU-seconds of each point."""
    plan: tuple[PartialPlan, int] | None = None
    """Choices behind every point of this front, and the offset to add to their layers."""
    parents: tuple[tuple["Front", "Front"], ...] = ()
    pair: Integers | None = None
    """Index into ``parents`` of the pair that each point is a sum of."""
    first: Integers | None = None
    second: Integers | None = None
    """Indices of each point's two summands in the pair."""
    factor: float = 1.0
    """Factor by which an efficient point's time may be below that of a point here with no more work."""

    def __len__(self) -> int:
        return len(self.time)

    def trace(self, point: int) -> Iterator[Choice]:
        """Yields all choices behind a point."""
        stack: list[tuple[Front, int]] = [(self, point)]
        while stack:
            front, index = stack.pop()
            if front.plan is not None:
                made, layers = front.plan
                yield from made.choices(layers)
            if front.pair is not None and front.first is not None and front.second is not None:
                left, right = front.parents[front.pair[index]]
                stack += [(left, int(front.first[index])), (right, int(front.second[index]))]


def single(time: float, work: float, plan: tuple[PartialPlan, int] | None = None) -> Front:
    """Returns one point."""
    return Front(np.array([time]), np.array([work]), plan)


EMPTY_PLAN = single(0.0, 0.0)


def combine(pairs: Sequence[tuple[Front, Front]], most: int | None = None) -> Front:
    """Returns the front of all sums of the first and the second of any pair.

    Args:
        pairs: alternatives; in each, both parts are done one after the other.
        most: points to keep at the most.
    """
    cancellation.check()
    time = np.concatenate([(a.time[:, None] + b.time[None, :]).ravel() for a, b in pairs])
    work = np.concatenate([(a.work[:, None] + b.work[None, :]).ravel() for a, b in pairs])
    kept = pareto_indices(time, work)
    factor = max(max(a.factor, b.factor) for a, b in pairs)
    if most is not None and len(kept) > most:
        kept, thinned = _thin(kept, time, most)
        factor *= thinned
    sizes = np.array([len(a) * len(b) for a, b in pairs])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    pair = np.searchsorted(starts, kept, side="right") - 1
    widths = np.array([len(b) for _, b in pairs])[pair]
    inner = kept - starts[pair]
    return Front(time[kept], work[kept], None, tuple(pairs), pair, inner // widths, inner % widths, factor)


def pareto_indices(time: Floats, work: Floats) -> Integers:
    """Returns the indices of the points that no other one dominates, by time; of equal points one stays."""
    # Stable sorting is fast on runs that are sorted already, and these are.
    by_work = np.argsort(work, kind="stable")
    order = by_work[np.argsort(time[by_work], kind="stable")]
    sorted_work = work[order]
    least_before = np.minimum.accumulate(sorted_work)
    better = np.concatenate([[True], sorted_work[1:] < least_before[:-1]])
    efficient: Integers = order[better]
    return efficient


def _thin(kept: Integers, time: Floats, most: int) -> tuple[Integers, float]:
    """Returns the last point, which has the least work, of each of ``most`` equal ratios of time; and that ratio."""
    times = time[kept]
    logarithm = np.log(times / times[0]) if times[0] > 0 else np.zeros(len(times))
    width = logarithm[-1] / most
    if width == 0:
        return kept, 1.0
    bucket = np.minimum((logarithm / width).astype(int), most - 1)
    last = np.concatenate([bucket[1:] != bucket[:-1], [True]])
    # The fastest point stays too: it is what a plan without a limit takes.
    last[0] = True
    return kept[last], float(np.exp(width))

"""Efficient sums of labels along the steps of a series.

A label is a way through one step, between a GPU count before it and one after it, with the numbers that add up along
the series. A sum takes one label of each step, each from the count where the one before it ends. A sum is dropped where
another one that ends on the same count beats it in all numbers.

Of two numbers, seconds and GPU-seconds, there may be too many. One of each small interval of seconds then stays, the
one of the fewest GPU-seconds, with the least seconds of those that it stands for: so for every sum of labels there is
one here with no more seconds and no more GPU-seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deeppool.base import cancellation
from deeppool.costs.table import Floats
from deeppool.planning.search.labels import Parts
from deeppool.planning.search.pareto import Integers, efficient_rows

JUMP = 1.02
"""Ratio of seconds between two sums that is a jump."""

Promising = Callable[[int, Integers, Floats], Integers]
"""Returns rows, from the position of a step, the GPU counts after it, and the sums."""


@dataclass(frozen=True, slots=True, eq=False)
class StepLabels:
    """Labels of one step as rows."""

    before: Integers
    """Index of the GPU count before it."""
    after: Integers
    values: Floats
    """(numbers, n) what adds up: forward, backward, price of GPU-seconds; or seconds, or a bound of them, and
    GPU-seconds."""
    plans: Sequence[Parts] = ()
    """The plan of each label; none where labels are bounds."""
    price: Integers | None = None
    """Of bounds of a block, per label the number of a price at which a search finds a way near to it."""

    def keep(self, rows: Integers) -> "StepLabels":
        """Returns some of the labels, which are bounds."""
        price = None if self.price is None else self.price[rows]
        return replace(self, before=self.before[rows], after=self.after[rows], values=self.values[:, rows], price=price)


@dataclass(frozen=True, slots=True, eq=False)
class LabelSums:
    """Sums that no other one beats in both numbers; seconds ascend, GPU-seconds descend."""

    time: Floats
    """Seconds, or where sums were left out the least of those that each stands for."""
    work: Floats
    labels: Integers
    """(step, sum) row of the label of each step."""

    def seconds(self, steps: Sequence[StepLabels]) -> Floats:
        """Returns the seconds of each sum itself."""
        total: Floats = np.sum([step.values[0, row] for step, row in zip(steps, self.labels, strict=True)], axis=0)
        return total


def efficient_sums(steps: Sequence[StepLabels], most: int, promising: Promising | None = None) -> LabelSums:
    """Returns the efficient sums of a label of each step, by seconds and GPU-seconds.

    Args:
        steps: labels.
        most: most sums to keep that end on one GPU count.
        promising: of the sums up to a step those that may become efficient.
    """
    after, sums = np.zeros(1, dtype=np.intp), np.zeros((2, 1))
    chosen = []
    for position, step in enumerate(steps):
        cancellation.check()
        left, right = pairs(after, step.before)
        key, values = step.after[right], sums[:, left] + step.values[:, right]
        kept = efficient_rows(key, *values)
        if promising is not None:
            kept = kept[promising(position, key[kept], values[:, kept])]
        kept, time = _thinned(key, values[0], kept, most)
        after, sums = key[kept], np.stack([time, values[1, kept]])
        chosen.append((left[kept], right[kept]))
    ends = rows = efficient_rows(None, *sums)
    labels = []
    for parent, label in reversed(chosen):
        labels.append(label[rows])
        rows = parent[rows]
    return LabelSums(sums[0, ends], sums[1, ends], np.stack(labels[::-1]))


def pairs(first: Integers, second: Integers) -> tuple[Integers, Integers]:
    """Returns the indices of all pairs with equal keys."""
    order = np.argsort(second, kind="stable")
    begin, end = (np.searchsorted(second[order], first, side=side) for side in ("left", "right"))
    sizes = end - begin
    left = np.repeat(np.arange(len(first)), sizes)
    inner = np.arange(len(left)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return left, order[np.repeat(begin, sizes) + inner]


def _thinned(key: Integers, time: Floats, kept: Integers, most: int) -> tuple[Integers, Floats]:
    """Returns at most ``most`` rows of each key, and the least seconds of those that each stands for.

    Args:
        key: key of all rows.
        time: seconds of all rows.
        kept: rows that stay, by key and time.
        most: most rows of a key.
    """
    rows, seconds = [kept[:0]], [time[:0]]
    for group in np.split(kept, np.nonzero(np.diff(key[kept]))[0] + 1):
        first = last = np.arange(len(group))
        if len(group) > most:
            ratio = np.log(time[group] / max(time[group[0]], 1e-300))
            cell = np.minimum((ratio * (most / ratio[-1])).astype(np.intp), most - 1)
            # GPU-seconds descend, so the last of a cell has the fewest and the first the least seconds.
            first = np.nonzero(np.diff(cell, prepend=-1))[0]
            last = np.append(first[1:], len(group)) - 1
        rows.append(group[last])
        seconds.append(time[group[first]])
    return np.concatenate(rows), np.concatenate(seconds)


def spread(time: Floats, most: int) -> Integers:
    """Returns rows, evenly many, and those on both sides of each jump of the seconds, which ascend."""
    jumps = np.nonzero(time[1:] > JUMP * time[:-1])[0]
    even = np.linspace(0, len(time) - 1, min(most, len(time))).astype(np.intp)
    return np.unique(np.concatenate([even, jumps, jumps + 1]))

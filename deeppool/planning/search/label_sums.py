"""Efficient sums of labels along the steps of a model.

A label is a way through one step, between a GPU count before it and one after it, with its seconds and GPU-seconds. A
sum takes one label of each step, each from the count where the one before it ends. A sum is dropped where another one
that ends on the same count beats it in both numbers. Where too many are left, one of each small interval of seconds
stays, the one of the fewest GPU-seconds, with the least seconds of those that it stands for: so for every sum of labels
there is one here with no more seconds and no more GPU-seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from deeppool.base import cancellation
from deeppool.costs.table import Floats

Integers = NDArray[np.intp]
JUMP = 1.02
"""Ratio of seconds between two sums that is a jump."""
CELLS = 4096
"""Intervals of seconds in which sums are compared before they are sorted."""


Promising = Callable[[int, Integers, Floats, Floats], Integers]
"""Returns rows, from the position of a step, the GPU counts after it, seconds and GPU-seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class StepLabels:
    """Labels of one step as rows."""

    before: Integers
    """Index of the GPU count before it."""
    after: Integers
    time: Floats
    """Seconds, or a lower bound of them."""
    work: Floats
    """GPU-seconds."""
    price: Integers | None = None
    """Of a block, per label the number of a price at which a search finds a way near to it."""

    def keep(self, rows: Integers) -> "StepLabels":
        """Returns some of the labels."""
        price = None if self.price is None else self.price[rows]
        return StepLabels(self.before[rows], self.after[rows], self.time[rows], self.work[rows], price)


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
        total: Floats = np.sum([step.time[row] for step, row in zip(steps, self.labels, strict=True)], axis=0)
        return total


def efficient_sums(steps: Sequence[StepLabels], most: int, promising: Promising | None = None) -> LabelSums:
    """Returns the efficient sums of a label of each step.

    Args:
        steps: labels.
        most: most sums to keep that end on one GPU count.
        promising: of the sums up to a step those that may become efficient.
    """
    after, time, work = np.zeros(1, dtype=np.intp), np.zeros(1), np.zeros(1)
    chosen = []
    for position, step in enumerate(steps):
        cancellation.check()
        left, right = _pairs(after, step.before)
        key, seconds, spent = step.after[right], time[left] + step.time[right], work[left] + step.work[right]
        kept = efficient_rows(key, seconds, spent)
        if promising is not None:
            kept = kept[promising(position, key[kept], seconds[kept], spent[kept])]
        kept, time = _thinned(key, seconds, kept, most)
        after, work = key[kept], spent[kept]
        chosen.append((left[kept], right[kept]))
    ends = rows = efficient_rows(np.zeros_like(after), time, work)
    labels = []
    for parent, label in reversed(chosen):
        labels.append(label[rows])
        rows = parent[rows]
    return LabelSums(time[ends], work[ends], np.stack(labels[::-1]))


def _pairs(first: Integers, second: Integers) -> tuple[Integers, Integers]:
    """Returns the indices of all pairs with equal keys."""
    order = np.argsort(second, kind="stable")
    begin, end = (np.searchsorted(second[order], first, side=side) for side in ("left", "right"))
    sizes = end - begin
    left = np.repeat(np.arange(len(first)), sizes)
    inner = np.arange(len(left)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return left, order[np.repeat(begin, sizes) + inner]


def efficient_rows(key: Integers, time: Floats, work: Floats) -> Integers:
    """Returns the rows that no row of their key beats in both, by key and time; of equal ones one."""
    rows = _not_clearly_beaten(key, time, work)
    order = rows[np.lexsort((work[rows], time[rows], key[rows]))]
    better = np.ones(len(order), dtype=bool)
    starts = np.searchsorted(key[order], np.arange(int(key.max(initial=0)) + 2))
    for start, end in pairwise(starts.tolist()):
        spent = work[order[start:end]]
        better[start + 1 : end] = spent[1:] < np.minimum.accumulate(spent)[:-1]
    return order[better]


def _not_clearly_beaten(key: Integers, time: Floats, work: Floats) -> Integers:
    """Returns the rows with less work than any of their key in earlier intervals of seconds: all efficient ones."""
    if len(key) <= CELLS:
        return np.arange(len(key))
    # Intervals of equal length in 1 / seconds: short where seconds are few.
    inverse = 1 / np.maximum(time, 1e-300)
    least, span = inverse.min(), np.ptp(inverse)
    cell = CELLS - 1 - ((inverse - least) * ((CELLS - 1) / (span or 1.0))).astype(np.intp)
    floor = np.full((int(key.max()) + 1, CELLS), np.inf)
    np.minimum.at(floor, (key, cell), work)
    before = np.minimum.accumulate(floor, axis=1)
    return np.nonzero((cell == 0) | (work < before[key, cell - 1]))[0]


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

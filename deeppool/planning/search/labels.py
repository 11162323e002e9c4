"""Labels of the plans of a part of a model, as arrays, from each GPU count before it to each after it.

A plan takes ``forward`` + ``backward`` + ``moved`` seconds and ``work`` GPU-seconds. A label set may leave plans out,
but bounds them: for every plan there is a label with no more work and a ``lower`` no greater than the plan's seconds.
Where only dominated plans were left out, ``lower`` is ``time``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deeppool.costs.table import Floats
from deeppool.planning.search.shortest_path import Choice

Integers = NDArray[np.int64]
Trace = Callable[[int], Iterator[Choice]]


COLUMNS = ("before", "after", "forward", "backward", "moved", "work", "lower")


@dataclass(frozen=True, slots=True, eq=False)
class LabelSet:
    """Labels as rows of arrays."""

    before: Integers
    """Index of the GPU count before it."""
    after: Integers
    forward: Floats
    """Seconds in the forward pass."""
    backward: Floats
    moved: Floats
    """Seconds that a join outside pays to fetch the results."""
    work: Floats
    """GPU-seconds of each row."""
    lower: Floats
    """Lower bound of seconds; see the module docstring."""
    trace: Trace
    """Function that yields the choices behind a row."""

    def __len__(self) -> int:
        return len(self.before)

    @property
    def time(self) -> Floats:
        """Seconds of both passes."""
        total: Floats = self.forward + self.backward + self.moved
        return total

    @property
    def exact(self) -> bool:
        """Whether only dominated ways were left out."""
        return bool((self.lower >= self.time * (1 - 1e-12)).all())

    def keep(self, rows: Integers) -> "LabelSet":
        """Returns some of the rows."""
        return LabelSet(
            self.before[rows],
            self.after[rows],
            self.forward[rows],
            self.backward[rows],
            self.moved[rows],
            self.work[rows],
            self.lower[rows],
            PickedRows.of(self).pick(rows),
        )

    def elsewhere(self, layers: int, start: int = 0) -> "LabelSet":
        """Returns the same labels for an equal part of the model, or on other GPUs."""
        if not layers and not start:
            return self
        trace = self.trace
        return replace(
            self, trace=lambda row: (Choice(x.layer + layers, x.option, x.start + start) for x in trace(row))
        )


@dataclass(frozen=True, slots=True, eq=False)
class PickedRows:
    """Trace of rows of several label sets, however often rows were picked and put together."""

    traces: tuple[Trace, ...]
    which: Integers
    """Index into ``traces``, per row."""
    rows: Integers
    """Row there."""

    @staticmethod
    def of(labels: LabelSet) -> "PickedRows":
        """Returns the trace of a label set."""
        if isinstance(labels.trace, PickedRows):
            return labels.trace
        nothing = np.zeros(len(labels), dtype=np.int64)
        return PickedRows((labels.trace,), nothing, np.arange(len(labels)))

    def pick(self, rows: Integers | slice) -> "PickedRows":
        """Returns the trace of some of the rows, without the label sets that have none of them."""
        used, which = np.unique(self.which[rows], return_inverse=True)
        return PickedRows(tuple(self.traces[index] for index in used.tolist()), which, self.rows[rows])

    def __call__(self, row: int) -> Iterator[Choice]:
        """Yields the choices behind a row."""
        return self.traces[int(self.which[row])](int(self.rows[row]))


def concatenate(menus: Sequence[LabelSet]) -> LabelSet:
    """Returns all rows of all menus."""
    if len(menus) == 1:
        return menus[0]
    picked = [PickedRows.of(menu) for menu in menus]
    offsets = np.cumsum([0, *(len(each.traces) for each in picked)])
    trace = PickedRows(
        tuple(each for part in picked for each in part.traces),
        np.concatenate([part.which + offset for part, offset in zip(picked, offsets, strict=False)]),
        np.concatenate([part.rows for part in picked]),
    ).pick(slice(None))

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(menu, name) for menu in menus])

    before, after, forward, backward, moved, work, lower = map(column, COLUMNS)
    return LabelSet(before, after, forward, backward, moved, work, lower, trace)


def pairs(first: Integers, second: Integers) -> tuple[Integers, Integers]:
    """Returns the indices of all pairs with equal keys."""
    order = np.argsort(second, kind="stable")
    ordered = second[order]
    begin, end = np.searchsorted(ordered, first), np.searchsorted(ordered, first, side="right")
    sizes = end - begin
    left = np.repeat(np.arange(len(first)), sizes)
    inner = np.arange(len(left)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return left, order[np.repeat(begin, sizes) + inner]


def count_pairs(first: Integers, second: Integers) -> int:
    """Returns the number of pairs with equal keys."""
    most = 1 + max(int(first.max(initial=0)), int(second.max(initial=0)))
    return int(np.bincount(first, minlength=most).astype(float) @ np.bincount(second, minlength=most))


def pareto_rows(key: Integers, time: Floats, work: Floats) -> Integers:
    """Returns the rows that no row of their key beats in both; of equal ones the first."""
    order = np.lexsort((work, time, key))
    ordered = work[order]
    # Each key's numbers lie below those of the keys before it, so that one running minimum serves all.
    shifted = ordered - key[order] * (2 * float(work.max(initial=0)) + 1)
    better = np.ones(len(order), dtype=bool)
    better[1:] = shifted[1:] < np.minimum.accumulate(shifted)[:-1]
    kept: Integers = order[better]
    return kept


def dominated_by(key: Integers, time: Floats, work: Floats, ends: Integers, known: LabelSet) -> NDArray[np.bool_]:
    """Returns which rows some known way between the same ends dominates; ``ends``: its keys."""
    if not len(key) or not len(known):
        return np.zeros(len(key), dtype=bool)
    rows = pareto_rows(ends, known.time, known.work)
    # One number for key and time, so that one search finds the slowest way that is fast enough.
    span = 2 * max(float(known.time.max()), float(time.max())) + 1e-300
    place = np.searchsorted(ends[rows] * span + known.time[rows], key * span + time, side="right") - 1
    there = rows[np.maximum(place, 0)]
    found: NDArray[np.bool_] = (place >= 0) & (ends[there] == key) & (known.work[there] <= work)
    return found


def efficient(menu: LabelSet, counts: int, ratio: float = 0.0) -> LabelSet:
    """Returns the ways that no other one beats in seconds and work, and those that bound what was left out before.

    Args:
        menu: labels with no ``moved`` that matters by itself.
        counts: number of GPU counts.
        ratio: one way stays for all those whose seconds lie within ``1 + ratio`` of one another.
    """
    if ratio and len(menu) > MOST_UNTHINNED * counts * counts:
        menu = _thinned(menu, menu.before * counts + menu.after, ratio)
    key = menu.before * counts + menu.after
    kept = pareto_rows(key, menu.lower, menu.work)
    if not menu.exact:
        kept = np.union1d(kept, pareto_rows(key, menu.time, menu.work))
    return menu.keep(kept[np.lexsort((menu.lower[kept], key[kept]))])


def _thinned(menu: LabelSet, key: Integers, ratio: float) -> LabelSet:
    """Keeps, in each cell of seconds, the way with the least work, which represents the others."""
    cell = _cells(menu.lower, key, ratio)
    least, low = np.full(cell.max() + 1, np.inf), np.full(cell.max() + 1, np.inf)
    np.minimum.at(least, cell, menu.work)
    np.minimum.at(low, cell, menu.lower)
    kept = np.nonzero(menu.work == least[cell])[0]
    lower = menu.lower.copy()
    lower[kept] = low[cell[kept]]
    if not menu.exact:
        # Real times count too, or a way of uncertain seconds might push out one of certain ones.
        cell = _cells(menu.time, key, ratio)
        least = np.full(cell.max() + 1, np.inf)
        np.minimum.at(least, cell, menu.work)
        kept = np.union1d(kept, np.nonzero(menu.work == least[cell])[0])
    return replace(menu, lower=lower).keep(kept)


def _cells(seconds: Floats, key: Integers, ratio: float) -> Integers:
    """Numbers each key and each interval of seconds whose ends are ``1 + ratio`` apart."""
    cell = np.floor(np.log(np.maximum(seconds, 1e-30)) / np.log1p(ratio)).astype(np.int64)
    cell -= cell.min()
    numbered: Integers = key * (int(cell.max()) + 1) + cell
    return numbered


MOST_UNTHINNED = 12
"""Ways between two GPU counts, on average, that are not thinned yet."""


def efficient_in_passes(menu: LabelSet, counts: int) -> LabelSet:
    """Returns the ways that no other one beats in forward, backward, transfers and work."""
    key = menu.before * counts + menu.after
    values = np.stack([menu.forward, menu.backward, menu.moved, menu.work])
    order = np.lexsort((*values, key))
    kept = []
    for rows in np.split(order, np.nonzero(np.diff(key[order]))[0] + 1):
        # One number at a time, which is far faster than .all() over so few.
        dominated_by = np.logical_and.reduce([here[None, :] <= here[:, None] for here in values[:, rows]])
        # Ordered so, a row can only be beaten by those before it.
        kept.append(rows[~np.tril(dominated_by, -1).any(axis=1)])
    return menu.keep(np.concatenate(kept))


def one_after_another(first: LabelSet, second: LabelSet, left: Integers, right: Integers) -> LabelSet:
    """Returns the pairs of rows whose times add up; from before the first to after the second."""
    return LabelSet(
        first.before[left],
        second.after[right],
        first.forward[left] + second.forward[right],
        first.backward[left] + second.backward[right],
        first.moved[left] + second.moved[right],
        first.work[left] + second.work[right],
        first.lower[left] + second.lower[right],
        both(first, second, left, right),
    )


def side_by_side(first: LabelSet, second: LabelSet, left: Integers, right: Integers) -> LabelSet:
    """Returns the pairs of rows that run at the same time; ``lower`` is their time."""
    forward = np.maximum(first.forward[left], second.forward[right])
    backward = np.maximum(first.backward[left], second.backward[right])
    moved = first.moved[left] + second.moved[right]
    return LabelSet(
        first.before[left],
        first.after[left],
        forward,
        backward,
        moved,
        first.work[left] + second.work[right],
        forward + backward + moved,
        both(first, second, left, right),
    )


def both(first: LabelSet, second: LabelSet, left: Integers, right: Integers) -> Trace:
    """Returns a trace whose rows have the choices of both rows of a pair."""

    def trace(row: int) -> Iterator[Choice]:
        yield from first.trace(int(left[row]))
        yield from second.trace(int(right[row]))

    return trace

"""The one filter of all searches: rows of numbers that no other row beats.

A row is beaten by one of its key that is no larger in any column:

    column 2 |  x .          x  kept
             |   . x         .  beaten: some x is neither above it nor to its right
             |      . x
             +----------- column 1
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from deeppool.costs.table import Floats

Integers = NDArray[np.intp]
CELLS = 4096
"""Intervals of the first column in which rows are compared before they are sorted."""
MOST_KEYS = 1000
"""The largest key for which that is done."""


def efficient_rows(key: Integers | None, *columns: Floats) -> Integers:
    """Returns the rows that no row of their key beats, by key and first column; of equal ones one.

    Args:
        key: key of each row; None: all rows have the same.
        columns: numbers of each row.
    """
    if key is None:
        return _of_one_key(columns)
    rows = _not_clearly_beaten(key, *columns) if len(columns) == 2 else np.arange(len(key))
    order = rows[np.lexsort([*(column[rows] for column in reversed(columns)), key[rows]])]
    starts = np.nonzero(np.diff(key[order], prepend=-1))[0]
    if len(columns) == 2:
        return order[_unbeaten_by_key(starts, columns[1][order])]
    better = np.ones(len(order), dtype=bool)
    for start, end in pairwise([*starts.tolist(), len(order)]):
        better[start:end] = _unbeaten([column[order[start:end]] for column in columns])
    return order[better]


def _of_one_key(columns: Sequence[Floats]) -> Integers:
    # Most calls are of a few rows, and cost what the calls of NumPy do.
    if len(columns[0]) <= 1:
        return np.arange(len(columns[0]))
    if len(columns) == 2 and len(columns[0]) > CELLS:
        return efficient_rows(np.zeros(len(columns[0]), dtype=np.intp), *columns)
    order = np.lexsort(columns[::-1])
    return order[_unbeaten([column[order] for column in columns])]


def _unbeaten(columns: Sequence[Floats]) -> NDArray[np.bool_]:
    """Returns which rows none before them beats; they are sorted."""
    better = np.ones(len(columns[0]), dtype=bool)
    if len(columns) == 2:
        better[1:] = columns[1][1:] < np.minimum.accumulate(columns[1])[:-1]
        return better
    values = np.stack(columns, axis=1)
    for row in range(1, len(values)):
        better[row] = not (values[:row][better[:row]] <= values[row]).all(axis=1).any()
    return better


def _unbeaten_by_key(starts: Integers, second: Floats) -> NDArray[np.bool_]:
    """Returns which rows none before them of their key beats, by the second column; they are sorted."""
    number = len(second)
    rank = np.empty(number, dtype=np.intp)
    rank[np.argsort(second, kind="stable")] = np.arange(number)
    # Later keys have lower ranks, so that one running minimum serves all keys.
    rank -= number * np.repeat(np.arange(len(starts)), np.diff(starts, append=number))
    better = np.ones(number, dtype=bool)
    better[1:] = rank[1:] < np.minimum.accumulate(rank)[:-1]
    return better


def _not_clearly_beaten(key: Integers, first: Floats, second: Floats) -> Integers:
    """Returns the rows smaller in the second column than any of their key in earlier intervals of the first one."""
    if len(key) <= CELLS or key.max() > MOST_KEYS:
        return np.arange(len(key))
    # Intervals of equal length in 1 / value: short where values are small.
    inverse = 1 / np.maximum(first, 1e-300)
    least, span = inverse.min(), np.ptp(inverse)
    cell = CELLS - 1 - ((inverse - least) * ((CELLS - 1) / (span or 1.0))).astype(np.intp)
    floor = np.full((int(key.max()) + 1, CELLS), np.inf)
    np.minimum.at(floor, (key, cell), second)
    before = np.minimum.accumulate(floor, axis=1)
    return np.nonzero((cell == 0) | (second < before[key, cell - 1]))[0]

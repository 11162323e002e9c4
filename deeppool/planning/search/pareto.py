"""The one filter of all searches: rows of numbers that no other row beats.

A row is beaten by one of its key that is no larger in any column:

    column 2 |  x .          x  kept
             |   . x         .  beaten: some x is neither above it nor to its right
             |      . x
             +----------- column 1
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from deeppool.costs.table import Floats

Integers = NDArray[np.intp]
CELLS = 4096
"""Intervals of the first column in which rows are compared before they are sorted."""
MOST_KEYS = 1000
"""The largest key for which that is done."""


def efficient_rows(key: Integers, *columns: Floats) -> Integers:
    """Returns the rows that no row of their key beats, by key and first column; of equal ones one."""
    rows = _not_clearly_beaten(key, *columns) if len(columns) == 2 else np.arange(len(key))
    order = rows[np.lexsort([*(column[rows] for column in reversed(columns)), key[rows]])]
    better = np.ones(len(order), dtype=bool)
    starts = np.nonzero(np.diff(key[order], prepend=-1))[0].tolist()
    for start, end in pairwise([*starts, len(order)]):
        if len(columns) == 2:
            second = columns[1][order[start:end]]
            better[start + 1 : end] = second[1:] < np.minimum.accumulate(second)[:-1]
        elif end > start + 1:
            better[start:end] = _unbeaten(np.stack([column[order[start:end]] for column in columns], axis=1))
    return order[better]


def _unbeaten(values: Floats) -> NDArray[np.bool_]:
    """Returns which rows none before them beats; they are sorted."""
    better = np.ones(len(values), dtype=bool)
    for row in range(1, len(values)):
        better[row] = not (values[:row][better[:row]] <= values[row]).all(axis=1).any()
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

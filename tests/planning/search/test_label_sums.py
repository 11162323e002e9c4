"""Efficient sums of labels, against all sums."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deeppool.planning.search.label_sums import StepLabels, efficient_sums
from tests.sampling import examples

ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 9), st.integers(1, 9)), max_size=8)
"""GPU count before, GPU count after, seconds, GPU-seconds."""


def labels(rows):
    before, after, time, work = np.array(rows, dtype=float).reshape(-1, 4).T
    return StepLabels(before.astype(int), after.astype(int), np.stack([time, work]))


def all_sums(steps):
    """(seconds, GPU-seconds) of every sum whose labels meet on one GPU count, from count 0 on."""
    for chosen in itertools.product(*steps):
        if chosen[0][0] == 0 and all(a[1] == b[0] for a, b in itertools.pairwise(chosen)):
            yield sum(row[2] for row in chosen), sum(row[3] for row in chosen)


@examples(200)
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_sums_are_those_that_no_sum_beats(steps):
    every = set(all_sums(steps))
    best = {sum_ for sum_ in every if not any(x != sum_ and x[0] <= sum_[0] and x[1] <= sum_[1] for x in every)}
    found = efficient_sums([labels(rows) for rows in steps], 100)
    assert list(zip(found.time, found.work, strict=True)) == sorted(best)
    for index, sum_ in enumerate(zip(found.time, found.work, strict=True)):
        chosen = [rows[label] for rows, label in zip(steps, found.labels[:, index], strict=True)]
        assert list(all_sums([[row] for row in chosen])) == [sum_]


@examples(100)
@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(1, 3))
def test_where_some_are_left_out_another_one_bounds_each(steps, most):
    found = efficient_sums([labels(rows) for rows in steps], most)
    for time, work in all_sums(steps):
        assert ((found.time <= time) & (found.work <= work)).any()


def test_the_sum_of_two_steps_is_every_pair_that_no_other_one_beats():
    first = labels([(0, 0, 1, 5), (0, 0, 2, 1)])
    second = labels([(0, 0, 1, 4), (0, 0, 3, 2)])
    found = efficient_sums([first, second], 100)
    # (1 + 3, 5 + 2) = (4, 7) loses to (2 + 1, 1 + 4) = (3, 5).
    assert list(zip(found.time, found.work, strict=True)) == [(2, 9), (3, 5), (5, 3)]

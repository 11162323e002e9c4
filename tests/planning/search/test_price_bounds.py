"""Bounds of all plans from searches at several prices, against all sums of ways."""

import itertools
import math

import numpy as np
import pytest

from deeppool.planning.search.price_bounds import RATIO, PriceGrid, larger, least_path_lengths, path_bounds
from tests.planning.search.test_step_labels import PRICES, drawn, heights_of


def bounds_of(steps, intervals, prices=PRICES):
    grid = PriceGrid(prices, intervals)
    return path_bounds(grid.prices, least_path_lengths([grid.between(heights_of(ways, prices)) for ways in steps]))


def sums_of(steps):
    """(seconds, GPU-seconds) of every sum whose ways meet on one GPU count, from count 0 on."""
    for chosen in itertools.product(*steps):
        if chosen[0][0] == 0 and all(a[1] == b[0] for a, b in itertools.pairwise(chosen)):
            yield sum(way[2] for way in chosen), sum(way[3] for way in chosen)


def from_one_count(steps):
    """The first step begins on one GPU count."""
    return [[way for way in steps[0] if way[0] == 0], *steps[1:]]


def test_two_ways_and_the_line_between_them():
    """From (1 s, 8 GPU-s) to (5 s, 4 GPU-s): one second for one GPU-second, so 3 s need 6 GPU-s at least."""
    time, work = bounds_of([[(0, 0, 1.0, 8.0), (0, 0, 5.0, 4.0)]], 1)
    assert (time[0], work[0]) == (pytest.approx(1), pytest.approx(8, rel=RATIO - 1))
    assert work[-1] == pytest.approx(4)
    assert work[np.searchsorted(time, 3.0) - 1] == pytest.approx(6, rel=2 * RATIO - 2)
    # Rows are within a thousandth of each other.
    assert (time[1:] / time[:-1] <= RATIO * (1 + 1e-9)).all()


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("intervals", [1, 4])
@pytest.mark.parametrize("seed", range(20))
def test_no_sum_of_ways_is_below_the_bounds(seed, intervals, scale):
    """In seconds, and in tenths of a millisecond, as layers take them."""
    draw = np.random.default_rng(seed)
    steps = from_one_count([drawn(draw) for _ in range(3)])
    steps = [[(before, after, scale * time, scale * work) for before, after, time, work in ways] for ways in steps]
    time, work = bounds_of(steps, intervals)
    for seconds, spent in sums_of(steps):
        assert ((time <= seconds) & (work <= spent)).any()
    # The fastest sum and the one of the fewest GPU-seconds are reached.
    assert time[0] == pytest.approx(min(seconds for seconds, _ in sums_of(steps)), rel=1e-8)
    assert work[-1] == pytest.approx(min(spent for _, spent in sums_of(steps)), rel=1e-8)


def test_more_prices_between_the_searched_ones_never_loosen_a_bound_and_may_tighten_it():
    """At the price between, each of two steps is on a line of its own; their sum is not on the line of the sums."""
    tightened = 0
    for seed in range(20):
        draw = np.random.default_rng(seed)
        steps = from_one_count([drawn(draw) for _ in range(3)])
        few = np.array([0.0, 0.05, 20.0, math.inf])
        rough, fine = bounds_of(steps, 1, few), bounds_of(steps, 8, few)
        for spent in np.linspace(rough[1][-1] * 1.01, rough[1][0] * 0.99, 9):
            before, after = (time[work <= spent][0] for time, work in (rough, fine))
            assert after >= before * (2 - RATIO)
            tightened += after > before * 1.01
    assert tightened


def test_of_two_bounds_the_larger_one_counts_at_every_budget():
    first = np.array([1.0, 4.0]), np.array([8.0, 2.0])
    second = np.array([2.0, 3.0]), np.array([6.0, 1.0])
    time, work = larger(first, second)
    # With 8 GPU-seconds: 1 s by the first, 2 s by the second. From 2 on: 4 and 2 or 3. With 1: none, by the first.
    assert list(zip(time, work, strict=True)) == [(2.0, 8.0), (4.0, 2.0)]

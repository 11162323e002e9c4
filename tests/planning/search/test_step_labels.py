"""Labels from prices, against ways drawn at random."""

import itertools
import math

import numpy as np
import pytest

from deeppool.planning.search.label_sums import StepLabels, efficient_sums
from deeppool.planning.search.step_labels import NEAR, vertex_labels, with_points_between

GAP = 0.004
PRICES = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 8.0, math.inf])


def heights_of(ways, prices=PRICES):
    """(price, before, after) least seconds + price x GPU-seconds of some (before, after, seconds, GPU-seconds)."""
    heights = np.full((len(prices), 2, 2), np.inf)
    for before, after, time, work in ways:
        values = [work if math.isinf(price) else time + price * work for price in prices]
        heights[:, before, after] = np.minimum(heights[:, before, after], values)
    return heights


def drawn(draw):
    ends = [(before, after) for before in range(2) for after in range(2) for _ in range(4)]
    return [(*pair, *draw.uniform(1, 10, 2)) for pair in ends]


def labels_of(ways):
    before, after, time, work = (np.array(column) for column in zip(*ways, strict=True))
    return StepLabels(before, after, np.stack([time, work]))


def fastest_of(steps):
    time = np.zeros(2) + np.array([0.0, np.inf])
    for ways in steps:
        time = (time[:, None] + heights_of(ways)[0]).min(axis=0)
    return float(time.min())


def test_three_ways_of_which_one_is_above_the_others_line():
    """One second buys one GPU-second from (1 s, 8 GPU-s) to (5 s, 4); (4 s, 6) lies above that line, 3 s at 6 GPU-s."""
    ways = [(0, 0, 1.0, 8.0), (0, 0, 5.0, 4.0), (0, 0, 4.0, 6.0)]
    found = vertex_labels(PRICES, heights_of(ways))
    assert found.values == pytest.approx(np.array([[1, 5], [8, 4]]))
    # A plan takes 10 s or more, so that labels may be 10 s x 0.4 % apart, and more where plans take longer.
    near = with_points_between(found, np.array([0]), 10.0, GAP)
    time = np.sort(near.values[0])
    assert (np.diff(time) <= GAP * (10 + time[:-1] - 1)).all()
    assert near.values.sum(axis=0) == pytest.approx(9)
    assert len(time) == math.ceil(math.log(14 / 10) / math.log1p(NEAR * GAP)) + 1


@pytest.mark.parametrize("rounding", [1e-13, -1e-13])
def test_of_the_prices_at_which_one_way_is_best_a_vertex_has_the_lowest(rounding):
    """Up to price 1, (1 s, 8 GPU-s) is the best way; from there on (5 s, 4), up to what rounding makes of the lines."""
    heights = heights_of([(0, 0, 1.0, 8.0), (0, 0, 5.0, 4.0)]) * (1 + rounding * np.arange(len(PRICES)))[:, None, None]
    assert PRICES[vertex_labels(PRICES, heights).price].tolist() == [0.1, 1.0]


@pytest.mark.parametrize("gap", [GAP, 0.05])
@pytest.mark.parametrize("seed", range(20))
def test_sums_of_labels_bound_every_sum_of_ways(seed, gap):
    draw = np.random.default_rng(seed)
    steps = [drawn(draw) for _ in range(3)]
    vertices = [vertex_labels(PRICES, heights_of(ways)) for ways in steps]
    fastest = fastest_of(steps)
    labels = [with_points_between(step, np.arange(len(step.before)), fastest, gap) for step in vertices]
    found = efficient_sums(labels, 10_000)
    loose = 0
    for chosen in itertools.product(*steps):
        if chosen[0][0] == 0 and all(a[1] == b[0] for a, b in itertools.pairwise(chosen)):
            time, work = sum(way[2] for way in chosen), sum(way[3] for way in chosen)
            least = found.time[found.work <= work * (1 + 1e-12)].min()
            assert least <= time * (1 + gap)
            loose += least < time * 0.99
    assert loose, "every sum is as good as its bound"

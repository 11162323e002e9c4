"""Labels of which no sum is of use: by hand, and against all sums."""

import numpy as np

from deeppool.planning.search.label_sums import efficient_sums
from deeppool.planning.search.sum_bounds import SumBounds
from tests.planning.search.test_step_labels import PRICES, drawn, heights_of, labels_of


def test_a_label_above_the_corner_of_two_known_sums_is_of_no_use():
    """Known: (1 s, 8 GPU-s) and (4 s, 2 GPU-s). Their corner is (4, 8): (2, 4) may be of use, (5, 9) is not."""
    ways = [(0, 0, 1.0, 8.0), (0, 0, 4.0, 2.0), (0, 0, 2.0, 4.0), (0, 0, 5.0, 9.0)]
    bounds = SumBounds(PRICES, [heights_of(ways)[:, :1, :1]])
    assert bounds.fastest == 1.0
    bounds.learn(np.array([1.0, 4.0]), np.array([8.0, 2.0]))
    useful = bounds.useful(0, labels_of(ways))
    assert 2 in useful
    assert 3 not in useful


def test_what_is_left_out_is_beaten_by_a_known_sum():
    left_out = 0
    for seed in range(20):
        draw = np.random.default_rng(seed)
        steps = [drawn(draw) for _ in range(4)]
        labels = [labels_of(ways) for ways in steps]
        every = efficient_sums(labels, 10_000)
        bounds = SumBounds(PRICES, [heights_of(ways) for ways in steps])
        bounds.learn(every.time[::3], every.work[::3])
        kept = [step.keep(bounds.useful(position, step)) for position, step in enumerate(labels)]
        left_out += sum(len(step.before) for step in labels) - sum(len(step.before) for step in kept)
        found = efficient_sums(kept, 10_000, bounds.promising)
        for time, work in zip(every.time, every.work, strict=True):
            assert ((found.time <= time * (1 + 1e-12)) & (found.work <= work * (1 + 1e-12))).any()
    assert left_out > 20 * 4

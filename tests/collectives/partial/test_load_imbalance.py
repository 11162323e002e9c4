"""Delays of ranks against what they are named for."""

import numpy as np
import pytest

from deeppool.collectives.partial.load_imbalance import REPORTED, drawn, fixed, one_random_rank, rotating
from deeppool.errors import InvalidValueError


def test_a_rotating_delay_gives_each_rank_every_delay_in_turn() -> None:
    delays = rotating(8, 0.05, 0.4)
    for step in range(8):
        assert sorted(delays(rank, step) for rank in range(8)) == pytest.approx(np.linspace(0.05, 0.4, 8))
    for rank in range(8):
        assert sorted(delays(rank, step) for step in range(8)) == pytest.approx(np.linspace(0.05, 0.4, 8))


def test_one_rank_is_late_in_each_step_and_all_are_equally_often() -> None:
    delays = one_random_rank(4, 0.2, seed=3)
    late = np.array([[delays(rank, step) for rank in range(4)] for step in range(2000)])
    assert np.array_equal(np.sort(late, axis=1), np.tile([0, 0, 0, 0.2], (2000, 1)))
    # Five standard deviations of a binomial with mean 500.
    assert abs((late > 0).sum(axis=0) - 500).max() < 5 * np.sqrt(500 * 0.75)


@pytest.mark.parametrize("name", REPORTED)
def test_drawn_times_have_the_reported_range_mean_and_deviation(name: str) -> None:
    reported, delays = REPORTED[name], drawn(name, seed=1)
    times = reported.shortest + np.array([delays(rank, step) for rank in range(4) for step in range(1000)])
    assert reported.shortest <= times.min()
    assert times.max() <= reported.longest
    # Means of 4000 draws deviate by a 63rd of the deviation.
    assert abs(times.mean() - reported.mean) < 5 * reported.deviation / 63
    assert times.std() == pytest.approx(reported.deviation, rel=0.15)


def test_fixed_delays_are_as_given_and_nonsense_is_refused() -> None:
    assert [fixed([0.0, 0.3])(rank, 7) for rank in range(2)] == [0.0, 0.3]
    with pytest.raises(InvalidValueError, match="got 'imagenet'"):
        drawn("imagenet")
    with pytest.raises(InvalidValueError, match=r"got 3 ranks and 0.2 to 0.1 s"):
        rotating(3, 0.2, 0.1)

"""Delays of ranks against what they are named for."""

import numpy as np
import pytest

from deeppool.collectives.partial.load_imbalance import REPORTED, drawn, fixed, random_ranks, rotating
from deeppool.errors import InvalidValueError


def test_a_rotating_delay_gives_each_rank_every_delay_in_turn() -> None:
    delays = rotating(8, 0.05, 0.4)
    for step in range(8):
        assert sorted(delays(rank, step) for rank in range(8)) == pytest.approx(np.linspace(0.05, 0.4, 8))
    for rank in range(8):
        assert sorted(delays(rank, step) for step in range(8)) == pytest.approx(np.linspace(0.05, 0.4, 8))


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_ranks_are_late_in_each_step_and_all_are_equally_often(count: int) -> None:
    delays = random_ranks(4, 0.2, count, seed=3)
    late = np.array([[delays(rank, step) for rank in range(4)] for step in range(2000)])
    assert np.array_equal((late == 0.2).sum(axis=1), np.full(2000, count))
    assert np.array_equal((late == 0).sum(axis=1), np.full(2000, 4 - count))
    # Five standard deviations of a binomial whose mean is 2000 * count / 4.
    assert abs((late > 0).sum(axis=0) - 500 * count).max() < 5 * np.sqrt(500 * count * (1 - count / 4))


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
    with pytest.raises(InvalidValueError, match="0 to 3 ranks are late, got 4"):
        random_ranks(3, 0.2, 4)

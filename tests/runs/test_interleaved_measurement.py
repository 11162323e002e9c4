"""Rounds of a run: how many, and how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.runs.interleaved_measurement import iterations_per_round, rounds_per_block


@pytest.mark.parametrize(
    ("total", "seconds", "shares"),
    [
        (2, 0.1, [1, 1]),
        (10, 0.125, [4, 3, 3]),  # three rounds at least
        (62, 0.05, [11, 11, 10, 10, 10, 10]),  # ten iterations are half a second
        (20, 1.0, [4, 4, 4, 4, 4]),  # four iterations at least, however long they take
    ],
)
def test_a_longer_run_has_more_rounds_and_not_longer_ones(total: int, seconds: float, shares: list[int]) -> None:
    assert iterations_per_round(total, seconds) == shares


def test_long_background_steps_make_rounds_longer() -> None:
    """The end of each round waits for the step in progress."""
    assert iterations_per_round(60, 0.1, step=1.0) == [20, 20, 20]
    assert iterations_per_round(60, 0.1, step=0.1) == iterations_per_round(60, 0.1)


@pytest.mark.parametrize(
    ("rounds", "seconds", "block"),
    [
        (30, 60.0, 4),  # rounds of two seconds
        (60, 30.0, 16),  # of half a second
        (7, 70.0, 1),
        (4, 2.0, 1),  # three blocks at least
        (30, 15.0, 10),
    ],
)
def test_rounds_within_eight_seconds_form_one_block(rounds: int, seconds: float, block: int) -> None:
    assert rounds_per_block(rounds, seconds) == block


@given(st.integers(1, 10**6), st.floats(1e-5, 1e3))
def test_rounds_have_equal_length_and_cover_all_iterations(total: int, seconds: float) -> None:
    shares = iterations_per_round(total, seconds)
    assert sum(shares) == total
    assert 0 < max(shares) <= min(shares) + 1

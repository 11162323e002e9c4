"""How many turns the conditions of a run take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.rounds import divided


@pytest.mark.parametrize(
    ("total", "seconds", "shares"),
    [
        (2, 0.1, [1, 1]),
        (20, 0.125, [7, 7, 6]),  # three rounds at least
        (120, 0.125, [18, 17, 17, 17, 17, 17, 17]),  # sixteen iterations are two seconds
        (40, 1.0, [8, 8, 8, 8, 8]),  # eight iterations at least, however long they take
    ],
)
def test_a_longer_run_has_more_rounds_and_not_longer_ones(total: int, seconds: float, shares: list[int]) -> None:
    assert divided(total, seconds) == shares


@given(st.integers(1, 10**6), st.floats(1e-5, 1e3))
def test_rounds_are_as_long_as_one_another_and_leave_out_nothing(total: int, seconds: float) -> None:
    shares = divided(total, seconds)
    assert sum(shares) == total
    assert 0 < max(shares) <= min(shares) + 1

"""How sure an estimate over rounds is."""

import math
import random
import statistics

import pytest

from deeppool.margin import format_margin, margin


def margin_of_mean(rounds: list[float]) -> float | None:
    return margin(
        lambda left_out: statistics.fmean(value for number, value in enumerate(rounds) if number != left_out),
        len(rounds),
    )


def test_of_a_mean_it_is_students_t_by_the_standard_error() -> None:
    """Three rounds: 4.30 at two degrees of freedom; the jackknife of a mean is its standard error."""
    assert margin_of_mean([1.0, 2.0, 6.0]) == pytest.approx(4.30 * statistics.stdev([1.0, 2.0, 6.0]) / math.sqrt(3))
    assert margin_of_mean([5.0] * 40) == 0.0


@pytest.mark.parametrize("rounds", [2, 3, 5, 9, 16, 40])
def test_the_true_value_is_inside_19_times_of_20(rounds: int) -> None:
    """Of a ratio of two means with 2 % of normal noise; 3,000 draws, so chance alone moves the share by 0.8 %."""
    draw = random.Random(rounds)
    inside, draws = 0, 3000
    for _ in range(draws):
        above, below = ([draw.gauss(1.0, 0.02) for _ in range(rounds)] for _ in range(2))

        def ratio(left_out: int | None, above: list[float] = above, below: list[float] = below) -> float:
            sums = [sum(x for number, x in enumerate(values) if number != left_out) for values in (above, below)]
            return sums[0] / sums[1]

        found = margin(ratio, rounds)
        assert found is not None
        inside += abs(ratio(None) - 1) <= found
    assert inside / draws == pytest.approx(0.95, abs=0.015)


def test_one_round_says_nothing_and_neither_does_an_estimate_that_stands_on_one() -> None:
    assert margin_of_mean([1.0]) is None
    assert margin(lambda left_out: None if left_out == 1 else 1.0, 3) is None


def test_it_follows_a_percentage() -> None:
    assert f"+2.6 %{format_margin(0.0193)}" == "+2.6 % ± 1.9"
    assert format_margin(None) == ""

"""How sure an estimate over rounds is."""

import math
import random
import statistics

import pytest

from deeppool.records.confidence_interval import confidence_half_width, format_interval

NOTHING = range(0)


def mean(values: list[float], left_out: range) -> float:
    return statistics.fmean([*values[: left_out.start], *values[left_out.stop :]])


def margin_of_mean(rounds: list[float], together: int = 1) -> float | None:
    return confidence_half_width(lambda left_out: mean(rounds, left_out), len(rounds), together)


def test_of_a_mean_it_is_students_t_by_the_standard_error() -> None:
    """Three rounds: 4.303 at two degrees of freedom; the jackknife of a mean is its standard error."""
    expected = 4.302653 * statistics.stdev([1.0, 2.0, 6.0]) / math.sqrt(3)
    assert margin_of_mean([1.0, 2.0, 6.0]) == pytest.approx(expected)
    assert margin_of_mean([5.0] * 40) == 0.0


@pytest.mark.parametrize("rounds", [2, 3, 5, 9, 16, 40])
def test_the_true_value_is_inside_19_times_of_20(rounds: int) -> None:
    """Of a ratio of two means with 2 % of normal noise; 3,000 draws, so chance alone moves the share by 0.8 %."""
    draw = random.Random(rounds)
    inside, draws = 0, 3000
    for _ in range(draws):
        above, below = ([draw.gauss(1.0, 0.02) for _ in range(rounds)] for _ in range(2))

        def ratio(left_out: range, above: list[float] = above, below: list[float] = below) -> float:
            return mean(above, left_out) / mean(below, left_out)

        found = confidence_half_width(ratio, rounds)
        assert found is not None
        inside += abs(ratio(NOTHING) - 1) <= found
    assert inside / draws == pytest.approx(0.95, abs=0.015)


def test_rounds_of_which_one_says_what_the_next_will_be_count_together() -> None:
    """Noise that lasts for two rounds or so: each of sixty counted by itself promises far too much."""
    draw, inside, draws = random.Random(0), {1: 0, 8: 0}, 1500
    for _ in range(draws):
        rounds, level = [], draw.gauss(0.0, 1.0)
        for _ in range(60):
            level = 0.6 * level + 0.8 * draw.gauss(0.0, 1.0)
            rounds.append(level)
        for together in inside:
            found = margin_of_mean(rounds, together)
            assert found is not None
            inside[together] += abs(statistics.fmean(rounds)) <= found
    assert inside[1] / draws < 0.75
    assert inside[8] / draws > 0.91


def test_a_stretch_is_as_long_as_asked_or_a_little_longer() -> None:
    left_out: list[range] = []
    confidence_half_width(lambda some: float(left_out.append(some) or len(left_out)), 11, together=3)
    assert left_out == [range(3), range(3, 7), range(7, 11)]


def test_one_round_says_nothing_and_neither_does_an_estimate_that_stands_on_one() -> None:
    assert margin_of_mean([1.0]) is None
    assert margin_of_mean([1.0, 2.0, 3.0], together=2) is None
    assert confidence_half_width(lambda left_out: None if 1 in left_out else 1.0, 3) is None


def test_it_follows_a_percentage() -> None:
    assert f"+2.6 %{format_interval(0.0193)}" == "+2.6 % ± 1.9"
    assert format_interval(None) == ""

"""Accuracy of the slowdown that a governor estimates."""

import random
import statistics

import pytest

from deeppool.scheduling.slowdown import Baseline, Estimate, Slowdown, clipped, spread, widening

SLOWER = 0.03


def estimated(draw: random.Random, rounds: int, lasting: int) -> Estimate:
    """Estimates a slowdown from interleaved iterations with and without background; noise of 5 % persists for some."""
    baseline, slowdown, noise = Baseline(), Slowdown(), 0.0
    for number in range(30 * rounds):
        if number % lasting == 0:
            noise = draw.gauss(0, 0.05)
        seconds = 0.1 * (1 + noise)
        if number % 30 < 15:
            baseline.add(seconds)
            slowdown.alone(baseline)
        else:
            slowdown.collocated((1 + SLOWER) * seconds / baseline.mean - 1)
    found = slowdown.estimate
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [7, 20])
@pytest.mark.parametrize("lasting", [1, 4, 13])
def test_autocorrelated_noise_does_not_narrow_the_interval(rounds: int, lasting: int) -> None:
    """The true slowdown is within two standard errors nearly 19 times of 20, at any autocorrelation.

    With standard errors of independent iterations it was 8 to 18 times of 20.
    """
    found = [estimated(random.Random(seed), rounds, lasting) for seed in range(400)]
    inside = sum(abs(one.mean - SLOWER) < 2 * one.error for one in found) / len(found)
    assert inside > 0.87
    scatter = (sum((one.mean - SLOWER) ** 2 for one in found) / len(found)) ** 0.5
    assert sum(one.error for one in found) / len(found) == pytest.approx(scatter, rel=0.25)


def test_few_iterations_are_estimated_independently_and_two_of_each_are_needed() -> None:
    baseline, slowdown = Baseline(), Slowdown()
    for seconds in (0.1, 0.1):
        assert slowdown.estimate is None
        baseline.add(seconds)
        slowdown.alone(baseline)
    slowdown.collocated(0.1)
    assert slowdown.estimate is None
    slowdown.collocated(0.3)
    # Of two values, a tenth from their mean: a standard deviation of 0.1 √2, over √2.
    assert slowdown.estimate == Estimate(pytest.approx(0.2), pytest.approx(0.1), 2, 2)


# -- by hand ----------------------------------------------------------------------------------------


def baseline_of(*times: float) -> Baseline:
    baseline = Baseline()
    for seconds in times:
        baseline.add(seconds)
    return baseline


def test_a_spread_is_the_median_deviation_of_normal_noise_in_standard_deviations() -> None:
    draw = random.Random(0)
    assert spread([draw.gauss(3, 0.5) for _ in range(20_001)]) == pytest.approx(0.5, rel=0.02)
    assert spread([1, 2, 3, 4, 1000]) == pytest.approx(1.4826)
    # 0.5, 0.5, 1.5 and 7.5 from 2.5.
    assert spread([10, 3, 1, 2]) == pytest.approx(1.4826)


def test_an_outlier_counts_as_four_standard_deviations_from_the_median() -> None:
    reach = 4 * 1.4826
    assert clipped([1, 2, 3, 4, 1000]) == pytest.approx([1, 2, 3, 4, 3 + reach])
    assert clipped([-1000, 2, 3, 4, 5]) == pytest.approx([3 - reach, 2, 3, 4, 5])
    # Of two times neither is an outlier, nor of times without any scatter.
    assert clipped([1, 1000]) == [1, 1000]
    assert clipped([1, 1, 1, 1000]) == [1, 1, 1, 1000]


@pytest.mark.parametrize(("freedom", "two", "three"), [(5, 2.649, 5.507), (10, 2.284, 3.957), (20, 2.133, 3.422)])
def test_widening_lies_between_that_of_two_and_of_three_standard_errors(freedom: int, two: float, three: float) -> None:
    """Quantiles of Student's t at the probabilities of two and three standard deviations of a normal distribution."""
    assert widening(freedom) == pytest.approx((two / 2 * three / 3) ** 0.5, rel=0.02)


@pytest.mark.parametrize("last", [1.05, 0.95])
def test_two_times_that_differ_clearly_from_earlier_ones_replace_them(last: float) -> None:
    # Noise of at least 1 % is assumed: 4 % are four standard deviations.
    assert baseline_of(1, 1, 1, last, last).mean == pytest.approx(last)
    assert len(baseline_of(1, 1, 1, last, last)) == 2
    near = 1 + 0.6 * (last - 1)
    assert baseline_of(1, 1, 1, near, near).mean == pytest.approx((3 + 2 * near) / 5)
    # One alone may be an outlier, and two earlier ones are not enough to compare with.
    assert len(baseline_of(1, 1, 1, 1, last)) == 5
    assert len(baseline_of(1, 1, last, last)) == 4


def test_what_scatters_must_differ_by_more() -> None:
    # A standard deviation of 0.1 x 1.4826: four are 0.59.
    scattered = (0.9, 1.0, 1.1)
    assert len(baseline_of(*scattered, 1.55, 1.55)) == 5
    assert len(baseline_of(*scattered, 1.65, 1.65)) == 2


def test_a_baseline_is_of_the_nine_latest_times() -> None:
    baseline = baseline_of(*[1.02] * 5, *[1.0] * 9)
    assert (len(baseline), baseline.mean, baseline.noise) == (9, 1, 0)
    assert baseline_of(1, 2, 3, 4, 1000).noise == pytest.approx(1.4826 / ((10 + 3 + 4 * 1.4826) / 5))


def slowdown_of(*blocks: list[float], alone: tuple[float, ...] = (1.0,) * Baseline.KEPT) -> Slowdown:
    """Returns the slowdowns of blocks with iterations alone before each."""
    baseline, slowdown = Baseline(), Slowdown()
    for block in blocks:
        for seconds in alone:
            baseline.add(seconds)
            slowdown.alone(baseline)
        for value in block:
            slowdown.collocated(value)
    return slowdown


def test_the_error_is_that_of_the_means_of_three_blocks_or_more() -> None:
    blocks = [[0.1] * 9, [0.2] * 9, [0.4] * 9]
    found = slowdown_of(*blocks).estimate
    assert found == Estimate(pytest.approx(0.7 / 3), pytest.approx(statistics.stdev([0.1, 0.2, 0.4]) / 3**0.5), 27, 27)


@pytest.mark.parametrize("blocks", [[[0.1] * 9, [0.2] * 9, [0.4] * 8], [[0.1] * 9, [0.2, 0.4] * 5]])
def test_with_two_whole_blocks_it_is_that_of_independent_iterations(blocks: list[list[float]]) -> None:
    alone = (0.98, 1.0, 1.02) * 3
    found = slowdown_of(*blocks, alone=alone).estimate
    assert found is not None
    values = [value for block in blocks for value in block]
    noise = 1.4826 * 0.02
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.error == pytest.approx((statistics.variance(values) / len(values) + noise**2 / 9) ** 0.5)


def test_a_block_ends_with_nine_iterations_alone() -> None:
    """Blocks of eight iterations alone are joined: of four such blocks one is closed, of nine two."""
    values = [0.1, 0.2, 0.3, 0.4]
    blocks = [[value] * 9 for value in values]
    independent = (statistics.variance([v for block in blocks for v in block]) / 36) ** 0.5
    found = slowdown_of(*blocks, alone=(1.0,) * 4).estimate
    assert found is not None
    # Closed after twelve iterations alone, before the fourth block: two blocks in all.
    assert found.error == pytest.approx(independent)


def test_a_copy_without_collocated_iterations_keeps_those_alone() -> None:
    copy = slowdown_of([0.1] * 9, [0.3] * 9).without_collocated()
    assert copy.estimate is None
    copy.collocated(0.2)
    copy.collocated(0.4)
    assert copy.estimate == Estimate(pytest.approx(0.3), pytest.approx(0.1), 18, 2)

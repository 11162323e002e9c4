"""Number of samples to measure, and their statistics."""

import pytest

from deeppool.profiling.measure import sampling as rules
from deeppool.profiling.measure.sampling import faster_half, is_sufficient, minimum_seconds, progress, spread, typical


def test_the_mean_of_the_faster_half_counts_and_an_outlier_does_not():
    times = [3.0, 1.0, 90.0, 2.0, 50.0]
    assert faster_half(times) == [0, 1, 3]
    assert typical(times) == 2.0


def test_of_two_samples_the_lower_counts_and_a_single_one_counts():
    assert typical([2.0, 1.0]) == 1.0
    assert typical([2.0]) == 2.0


def test_spread_is_half_the_middle_half_over_the_median():
    # Quartiles 2 and 4 around 3.
    assert spread([5.0, 4.0, 3.0, 2.0, 1.0]) == pytest.approx(1 / 3)
    assert spread([1.0, 3.0]) == pytest.approx(0.5)
    assert spread([1.0]) == 0.0


@pytest.mark.parametrize(
    ("layered", "whole", "is_enough"),
    [
        ([0.2] * 5, [0.2] * 5, True),
        ([0.2] * 5, [0.2] * 4, False),  # too few
        ([0.01] * 5, [0.01] * 5, False),  # too short
        ([0.2, 0.2, 0.3, 0.4, 0.4], [0.2] * 5, False),  # not steady
        ([0.01, 0.02] * 25, [0.01] * 50, True),  # not steady, but often enough
        ([3.0, 3.0], [3.0], True),  # long enough
        ([9.0], [9.0], False),  # one says nothing of its spread
        ([4.0, 4.0], [], False),
    ],
)
def test_sampling_ends_when_both_are_steady_or_took_long(layered, whole, is_enough):
    assert is_sufficient(layered, whole) == is_enough


def test_in_virtual_time_iterations_may_be_short():
    short = [0.01] * rules.MINIMUM_RUNS
    assert is_sufficient(short, short, least=minimum_seconds("emulated:h200"))
    assert not is_sufficient(short[1:], short, least=minimum_seconds("emulated:h200"))
    assert not is_sufficient(short, short, least=minimum_seconds("emulated"))


def test_more_seconds_are_more_iterations():
    unsteady = [2.0, 3.0]
    assert is_sufficient(unsteady, unsteady)
    assert not is_sufficient(unsteady, unsteady, 30.0)
    assert is_sufficient([2.0, 3.0] * 3, [2.0, 3.0] * 3, 30.0)
    assert progress(unsteady, unsteady, 30.0) == pytest.approx(2 / rules.MINIMUM_RUNS)


def test_progress_stays_below_the_end_until_it_is_enough():
    assert progress([], []) == 0.0
    assert progress([0.1], [0.1]) == pytest.approx(1 / rules.MINIMUM_RUNS)
    assert progress([2.0], [1.0]) == pytest.approx(3 / rules.MAXIMUM_SECONDS)
    assert progress([0.001] * 30, [0.001] * 30) == 0.95

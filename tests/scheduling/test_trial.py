"""Turns with and without a background: what they say of its cost, and of what is not its fault."""

import random

import pytest

from deeppool.scheduling.trial import LONGEST, TURN, Trial

BOUND = 0.03


def held(cost, *, drift=0.0, noise=0.0, low=0.01, high=1.0, seed=0):
    """A trial of a background of a known cost, to its end."""
    draw, trial = random.Random(seed), Trial(low, high)
    while not trial.over(BOUND):
        trial.collocated(trial.share, drift + cost * trial.share + draw.gauss(0, noise), noise)
    return trial


@pytest.mark.parametrize("drift", [-0.05, 0.0, 0.2])
@pytest.mark.parametrize("cost", [-0.02, 0.0, 0.5])
@pytest.mark.parametrize(("low", "high"), [(0.01, 1.0), (0.01, 0.2)])
def test_without_noise_two_turns_tell_cost_and_drift_apart(cost, drift, low, high):
    trial = held(cost, drift=drift, low=low, high=high)
    assert len(trial.seen) <= 2 * TURN
    assert trial.cost == pytest.approx(cost)
    assert trial.level == pytest.approx(drift)


def test_the_first_of_each_turn_has_little():
    trial = Trial(0.01, 0.4)
    shares = []
    for _ in range(2 * TURN):
        shares.append(trial.share)
        trial.collocated(trial.share, 0.0, 0.02)
    assert shares == 2 * [0.01, 0.4, 0.4, 0.4]


@pytest.mark.parametrize(("cost", "above"), [(0.12, True), (0.0, False)])
def test_with_noise_the_verdict_is_right_nearly_always(cost, above):
    verdicts = [held(cost, drift=0.1, noise=0.02, seed=seed).cost > BOUND for seed in range(200)]
    assert sum(verdict is above for verdict in verdicts) >= 195


def test_what_lies_at_the_bound_is_tried_for_long_but_not_for_ever():
    lengths = {len(held(BOUND, noise=0.02, seed=seed).seen) for seed in range(50)}
    assert max(lengths) == LONGEST

"""Trials of a background: interleaved iterations estimate its cost apart from drift and noise."""

import random
from statistics import fmean

import numpy as np
import pytest

from deeppool.scheduling.slowdown import widening
from deeppool.scheduling.trial import BLOCK, MAX_ITERATIONS, SURE, Trial

BOUND = 0.03


def run_trial(cost, *, drift=0.0, noise=0.0, low=0.01, high=1.0, seed=0):
    """Runs a trial of a background of a known cost to its end."""
    draw, trial = random.Random(seed), Trial(low, high)
    while not trial.over(BOUND):
        trial.collocated(trial.share, drift + cost * trial.share + draw.gauss(0, noise), noise)
    return trial


@pytest.mark.parametrize("drift", [-0.05, 0.0, 0.2])
@pytest.mark.parametrize("cost", [-0.02, 0.0, 0.5])
@pytest.mark.parametrize(("low", "high"), [(0.01, 1.0), (0.01, 0.2)])
def test_without_noise_two_blocks_separate_cost_and_drift(cost, drift, low, high):
    trial = run_trial(cost, drift=drift, low=low, high=high)
    assert len(trial.iterations) <= 2 * BLOCK
    assert trial.cost == pytest.approx(cost)
    assert trial.level == pytest.approx(drift)


def test_the_first_iteration_of_each_block_has_the_low_share():
    trial = Trial(0.01, 0.4)
    shares = []
    for _ in range(2 * BLOCK):
        shares.append(trial.share)
        trial.collocated(trial.share, 0.0, 0.02)
    assert shares == 2 * [0.01, 0.4, 0.4, 0.4]


@pytest.mark.parametrize(("cost", "above"), [(0.12, True), (0.0, False)])
def test_with_noise_the_decision_is_right_nearly_always(cost, above):
    decisions = [run_trial(cost, drift=0.1, noise=0.02, seed=seed).cost > BOUND for seed in range(200)]
    assert sum(decision is above for decision in decisions) >= 195


def test_a_trial_of_a_cost_at_the_bound_is_long_but_ends():
    lengths = {len(run_trial(BOUND, noise=0.02, seed=seed).iterations) for seed in range(50)}
    assert max(lengths) == MAX_ITERATIONS


def run_suspected_trial(cost, *, noise, seed, suspected=0.0, earlier=(), bound=BOUND):
    """Runs a trial as :func:`run_trial`, with a suspected slowdown and results of earlier trials."""
    draw, trial = random.Random(seed), Trial(0.01, 1.0, suspected=suspected, earlier=earlier)
    while not trial.over(bound):
        trial.collocated(trial.share, cost * trial.share + draw.gauss(0, noise), noise)
    return trial


def test_a_refuted_suspicion_ends_a_trial_before_the_cost_is_known():
    """Noise of 5 % hides whether it is less than 3 % for long, but not that it is less than 20 %."""
    refuted = [run_suspected_trial(0.0, noise=0.05, seed=seed, suspected=0.4) for seed in range(100)]
    unsuspected = [run_suspected_trial(0.0, noise=0.05, seed=seed) for seed in range(100)]
    assert fmean(len(trial.iterations) for trial in refuted) < 12
    assert fmean(len(trial.iterations) for trial in unsuspected) > 30
    assert sum(trial.attributed_slowdown(BOUND) is not None for trial in refuted) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_slowdown_is_rarely_attributed_to_a_harmless_background_at_any_noise(noise):
    assert (
        sum(
            run_suspected_trial(0.0, noise=noise, seed=seed, bound=0.001).attributed_slowdown(0.001) is not None
            for seed in range(200)
        )
        <= 8
    )


def test_several_trials_prove_a_slowdown_that_one_cannot():
    """Of 4 % at a noise of 5 %, one trial of twelve blocks is conclusive in a few cases, three trials in most."""
    once, thrice = [], []
    for seed in range(60):
        trial = run_suspected_trial(0.04, noise=0.05, seed=seed)
        once.append(trial.attributed_slowdown(BOUND))
        for again in (1000, 2000):
            trial = run_suspected_trial(0.04, noise=0.05, seed=seed + again, earlier=trial.interleaved)
        thrice.append(trial.attributed_slowdown(BOUND))
    found = [cost for cost in thrice if cost is not None]
    assert sum(cost is not None for cost in once) < 0.6 * len(once)
    assert len(found) > 0.75 * len(thrice)
    # Trials that prove something are those that chance has helped.
    assert 0.04 < fmean(found) < 0.06


def test_a_background_that_became_harmful_is_detected_despite_earlier_trials():
    trial = run_suspected_trial(0.5, noise=0.02, seed=0, earlier=[0.0] * 36)
    assert trial.attributed_slowdown(BOUND) == pytest.approx(0.5, rel=0.1)


def test_blocks_that_agree_by_chance_are_trusted_as_far_as_the_known_noise_allows():
    """The noise of a block is drawn here: one iteration with the small share, compared with the mean of the others."""
    draw = np.random.default_rng(1)
    of_a_block = (draw.normal(size=(200_000, BLOCK - 1)).mean(axis=1) - draw.normal(size=200_000)).std()
    low, high, cost, blocks = 0.2, 0.7, 0.3, 2
    # The error of the mean of two blocks, of which the noise counts for 4 of 5 degrees of freedom.
    reach_per_noise = SURE * widening(5) * of_a_block / (high - low) * (4 / 5 / blocks) ** 0.5
    for share_of_limit, attributed in ((0.97, True), (1.03, False)):
        trial = Trial(low, high)
        for _ in range(blocks * BLOCK):
            trial.collocated(trial.share, cost * trial.share, share_of_limit * cost / reach_per_noise)
        assert (trial.attributed_slowdown(BOUND) is not None) is attributed

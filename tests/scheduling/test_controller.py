"""The share of the time that holds a bound, on plants whose answer is known."""

import random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppool.scheduling.controller import LEAST
from deeppool.scheduling.governor import Governor
from deeppool.sharing import Sharing

BOUND = 0.03


def run(plant, *, noise, seed, iterations=500, bound=BOUND):
    """Shares, and true slowdowns, of the collocated iterations of a foreground of 0.1 s."""
    draw = random.Random(seed)
    governor = Governor(Sharing(max_slowdown=bound))
    shares, slowdowns = [], []
    for iteration in range(iterations):
        orders = governor.begin(iteration)
        slowdown = plant(iteration, orders.share) if orders.open else 0.0
        governor.end(0.1 * (1 + slowdown) * draw.lognormvariate(0, noise), {})
        if orders.open:
            shares.append(orders.share)
            slowdowns.append(slowdown)
    return shares, slowdowns


@settings(deadline=None, max_examples=40)
@given(st.floats(0.06, 1.5), st.sampled_from([0.005, 0.02, 0.05]), st.integers(0, 10**6))
def test_a_slowdown_in_proportion_to_the_share_comes_to_the_bound(cost, noise, seed):
    shares, slowdowns = run(lambda _, share: cost * share, noise=noise, seed=seed)
    # What nine alone can tell: a third of their noise.
    assert fmean(slowdowns[-200:]) < BOUND + noise
    assert fmean(shares[-200:]) > 0.3 * min(1.0, (BOUND - noise / 3) / cost)


@settings(deadline=None, max_examples=40)
@given(st.floats(-0.1, 0.01), st.sampled_from([0.005, 0.02, 0.05]), st.integers(0, 10**6))
def test_a_background_that_costs_less_than_the_bound_keeps_the_whole_share(cost, noise, seed):
    shares, _ = run(lambda _, share: cost * share, noise=noise, seed=seed)
    assert fmean(shares) > 0.9
    if noise < 0.02:
        assert set(shares) == {1.0}


@pytest.mark.parametrize("plant", [lambda s: 0.3 * min(s, 0.4), lambda s: 0.5 * s * s, lambda s: 0.1 * s**0.5])
def test_the_slowdown_need_not_be_proportional(plant):
    late = [run(lambda _, share: plant(share), noise=0.02, seed=seed)[1][-200:] for seed in range(5)]
    assert 0.5 * BOUND < fmean(fmean(one) for one in late) < 1.2 * BOUND


def test_a_clear_violation_is_answered_within_three_collocated_iterations():
    shares, _ = run(lambda _, share: 1.2 * share, noise=0.03, seed=1)
    assert shares[2] < 1
    assert shares[8] < 0.1


def test_a_background_that_becomes_harmful_is_held_within_few_iterations():
    shares, slowdowns = run(lambda i, share: 0.5 * share if i >= 300 else 0.0, noise=0.02, seed=1)
    late = next(number for number, slowdown in enumerate(slowdowns) if slowdown)
    assert set(shares[:late]) == {1.0}
    assert fmean(slowdowns[late + 20 : late + 60]) < 1.5 * BOUND


def test_a_background_that_becomes_harmless_gets_the_device_back():
    shares, _ = run(lambda i, share: 0.5 * share if i < 300 else 0.0, noise=0.02, seed=1)
    assert shares[200] < 0.2
    assert fmean(shares[-50:]) == 1.0


def test_a_background_that_no_share_makes_bearable_is_not_starved():
    shares, _ = run(lambda *_: 0.5, noise=0.02, seed=1, iterations=100)
    assert shares[-1] == pytest.approx(LEAST)


def test_single_iterations_far_out_change_nothing():
    shares, _ = run(lambda i, _: 3.0 if i % 50 == 7 else 0.0, noise=0.01, seed=1)
    assert set(shares) == {1.0}

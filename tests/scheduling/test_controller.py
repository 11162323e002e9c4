"""Share of the time that keeps a bound, on simulated plants of known slowdown."""

import math
import random
from statistics import fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deeppool.base.sharing import Sharing
from deeppool.scheduling.controller import CAUTIOUS, MIN_SHARE, TRIAL_INTERVAL, Controller
from deeppool.scheduling.governor import Governor
from deeppool.scheduling.trial import MAX_ITERATIONS
from tests.sampling import examples

BOUND = 0.03


def run(plant, *, noise, seed, iterations=500, bound=BOUND, speed=None, priority="lowest"):
    """Shares, and true slowdowns, of the collocated iterations of a foreground of 0.1 s."""
    draw = random.Random(seed)
    governor = Governor(Sharing(priority=priority, max_slowdown=bound))
    shares, slowdowns = [], []
    for iteration in range(iterations):
        limits = governor.begin(iteration)
        slowdown = plant(iteration, limits.share) if limits.open else 0.0
        drift = 1 + (next(speed) if speed else 0.0)
        governor.end(0.1 * (1 + slowdown) * drift * draw.lognormvariate(0, noise), {})
        if limits.open:
            shares.append(limits.share)
            slowdowns.append(slowdown)
    return shares, slowdowns


@examples(40)
@given(st.floats(-0.1, 1.5))
def test_without_noise_the_share_is_all_that_the_bound_allows(cost):
    # At the bound itself rounding decides.
    assume(not math.isclose(cost, BOUND))
    shares, slowdowns = run(lambda _, share: cost * share, noise=0.0, seed=0, iterations=150)
    if cost <= BOUND:
        assert set(shares) == {1.0}
    else:
        assert max(slowdowns[20:]) <= BOUND * (1 + 1e-9)
        assert shares[-1] == pytest.approx(max(MIN_SHARE, 0.9 * BOUND / cost), rel=0.01)


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize(("cost", "part"), [(0.1, 1.0), (0.5, 0.8), (1.5, 0.6)])
def test_a_background_of_normal_priority_is_tried_before_it_gets_the_device(cost, part, noise):
    def plant(_, share):
        return cost * share

    found = {
        priority: [run(plant, noise=noise, seed=seed, iterations=100, priority=priority) for seed in range(12)]
        for priority in ("normal", "lowest")
    }
    paid = {priority: fmean(fmean(slowdowns) for _, slowdowns in runs) for priority, runs in found.items()}
    assert paid["normal"] < part * paid["lowest"]
    assert all(max(shares[:2]) <= CAUTIOUS for shares, _ in found["normal"])


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_harmless_background_gets_the_device_after_its_trial(noise):
    for seed in range(12):
        shares, _ = run(lambda *_: -0.005, noise=noise, seed=seed, iterations=150, priority="normal")
        assert fmean(shares[-50:]) > 0.9


# Chance is drawn once for all: among many draws there are some that mislead any controller.
@pytest.mark.slow
@pytest.mark.parametrize(("noise", "slack"), [(0.005, 0.1), (0.02, 0.2), (0.05, 0.7)])
def test_with_noise_the_bound_holds_on_average(noise, slack):
    """The governor has nine iterations without background: a third of their noise remains in their mean."""
    draw = random.Random(1)
    costs = [math.exp(draw.uniform(math.log(2 * BOUND), math.log(1.5))) for _ in range(15)]
    late = [
        fmean(run(lambda _, share, cost=cost: cost * share, noise=noise, seed=seed)[1][-200:])
        for seed, cost in enumerate(costs)
    ]
    assert 0.5 * BOUND < fmean(late) < (1 + slack) * BOUND


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "least"), [(0.005, 1.0), (0.02, 0.98), (0.05, 0.9)])
def test_with_noise_a_background_that_costs_little_keeps_its_share(noise, least):
    draw = random.Random(2)
    costs = [draw.uniform(0.0, 0.5 * BOUND) for _ in range(15)]
    means = [
        fmean(run(lambda _, share, cost=cost: cost * share, noise=noise, seed=seed)[0])
        for seed, cost in enumerate(costs)
    ]
    assert fmean(means) >= least


@pytest.mark.slow
@pytest.mark.parametrize("plant", [lambda s: 0.3 * min(s, 0.4), lambda s: 0.5 * s * s, lambda s: 0.1 * s**0.5])
def test_the_slowdown_need_not_be_proportional(plant):
    late = [run(lambda _, share: plant(share), noise=0.02, seed=seed)[1][-200:] for seed in range(5)]
    assert 0.5 * BOUND < fmean(fmean(one) for one in late) < 1.2 * BOUND


def test_a_clear_violation_lowers_the_share_within_three_collocated_iterations():
    shares, _ = run(lambda _, share: 1.2 * share, noise=0.03, seed=1)
    assert shares[2] < 1
    assert shares[8] < 0.1


def test_a_background_that_becomes_harmful_is_limited_within_few_iterations():
    shares, slowdowns = run(lambda i, share: 0.5 * share if i >= 300 else 0.0, noise=0.02, seed=1)
    late = next(number for number, slowdown in enumerate(slowdowns) if slowdown)
    assert set(shares[:late]) == {1.0}
    assert fmean(slowdowns[late + 20 : late + 60]) < 1.5 * BOUND


def test_a_background_that_becomes_harmless_gets_the_device_back():
    shares, _ = run(lambda i, share: 0.5 * share if i < 300 else 0.0, noise=0.02, seed=1)
    assert shares[200] < 0.2
    assert fmean(shares[-50:]) == 1.0


def test_a_background_over_its_bound_at_any_share_gets_the_minimum_share():
    """It looks like a foreground that became slower by itself until iterations without background refute that."""
    shares, _ = run(lambda *_: 0.5, noise=0.02, seed=1, iterations=600)
    assert set(shares[-100:]) == {MIN_SHARE}


def drifting_speed(seed, *, size, memory):
    """Yields autocorrelated relative slowdowns of standard deviation ``size`` and correlation length ``memory``."""
    draw, level, kept = random.Random(seed), 0.0, math.exp(-1 / memory)
    while True:
        yield level
        level = kept * level + math.sqrt(1 - kept**2) * draw.gauss(0, size)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "memory"), [(0.01, 20), (0.03, 20), (0.03, 100)])
@pytest.mark.parametrize("cost", [-0.01, 0.0])
def test_drifting_machine_speed_costs_a_harmless_background_little(cost, size, memory):
    means = []
    for seed in range(10):
        speed = drifting_speed(seed, size=size, memory=memory)
        shares, _ = run(lambda _, share: cost * share, noise=0.02, seed=seed, bound=0.01, speed=speed)
        means.append(fmean(shares[20:]))
    assert fmean(means) >= 0.9


@pytest.mark.parametrize("size", [0.03, 0.1])
def test_a_foreground_that_becomes_slower_by_itself_costs_the_background_little(size):
    speed = (0.0 if iteration < 60 else size for iteration in range(500))
    shares, _ = run(lambda *_: 0.0, noise=0.01, seed=3, bound=0.01, speed=speed)
    assert fmean(shares) >= 0.93


@pytest.mark.parametrize(("cost", "share"), [(0.0, 1.0), (0.1, 0.9 * BOUND / 0.1)])
def test_outlier_iterations_change_little(cost, share):
    shares, _ = run(lambda i, share: 3.0 if i % 25 == 7 else cost * share, noise=0.01, seed=1)
    assert fmean(shares[-200:]) == pytest.approx(share, rel=0.2)


# -- a bound that is changed while it is held ---------------------------------------------------------


def run_with_changed_bound(before, after, *, cost, noise, seed, change=300, iterations=900):
    """Shares and true slowdowns of the collocated iterations before and after the bound is changed."""
    draw = random.Random(seed)
    governor = Governor(Sharing(max_slowdown=before))
    parts = [], []
    for iteration in range(iterations):
        if iteration == change:
            governor.change_bound(after)
        limits = governor.begin(iteration)
        slowdown = cost * limits.share if limits.open else 0.0
        governor.end(0.1 * (1 + slowdown) * draw.lognormvariate(0, noise), {})
        if limits.open:
            parts[iteration >= change].append((limits.share, slowdown))
    return governor, parts


@pytest.mark.parametrize(("before", "after"), [(0.03, 0.15), (0.15, 0.03), (0.02, 0.02)])
def test_a_share_that_holds_a_bound_holds_another_one_at_once(before, after):
    _, (old, new) = run_with_changed_bound(before, after, cost=0.5, noise=0.0, seed=0)
    assert old[-1][0] == pytest.approx(0.9 * before / 0.5)
    assert [share for share, _ in new] == pytest.approx([0.9 * after / 0.5] * len(new))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(0.03, 0.15), (0.15, 0.03), (1.0, 0.03)])
def test_with_noise_too_the_new_bound_holds_on_average(before, after):
    late = [
        fmean(
            slowdown
            for _, slowdown in run_with_changed_bound(before, after, cost=0.6, noise=0.02, seed=seed)[1][1][-200:]
        )
        for seed in range(10)
    ]
    assert 0.5 * after < fmean(late) < 1.2 * after


def test_a_looser_bound_removes_the_limit_of_a_background():
    _, (old, new) = run_with_changed_bound(0.03, 1.0, cost=0.5, noise=0.0, seed=0)
    assert old[-1][0] < 0.1
    assert {share for share, _ in new} == {1.0}


def test_a_background_over_the_old_bound_at_any_share_is_tried_again_under_a_new_one():
    """A slowdown of 50 % at any share: no share for a bound of 3 %, the whole time for one of 100 %."""
    draw = random.Random(1)
    governor = Governor(Sharing(max_slowdown=BOUND))
    shares = []
    for iteration in range(1500):
        if iteration == 700:
            governor.change_bound(1.0)
        limits = governor.begin(iteration)
        governor.end(0.1 * (1.5 if limits.open else 1.0) * draw.lognormvariate(0, 0.02), {})
        if limits.open:
            shares.append((iteration, limits.share))
    assert {share for iteration, share in shares if 600 <= iteration < 700} == {MIN_SHARE}
    assert shares[-1][1] == 1.0


def test_the_reported_slowdown_covers_only_iterations_under_the_new_bound():
    governor, (_, new) = run_with_changed_bound(0.15, 0.03, cost=0.5, noise=0.0, seed=0)
    found = governor.slowdown
    assert found.mean == pytest.approx(fmean(slowdown for _, slowdown in new))
    assert found.collocated == len(new)
    # Iterations alone are what they were.
    assert found.alone > 9


def test_a_bound_can_be_added_to_feedback():
    governor = Governor(Sharing(feedback=10.0))
    shares = []
    for iteration in range(600):
        if iteration == 100:
            governor.change_bound(BOUND)
        limits = governor.begin(iteration)
        governor.end(0.1 * (1 + 0.5 * limits.share * limits.open), {})
        shares.append(limits.share)
    assert set(shares[:100]) == {1.0}
    assert shares[-1] == pytest.approx(0.9 * BOUND / 0.5, rel=0.01)


def test_a_tighter_bound_starts_a_trial_at_once_after_an_earlier_trial_passed():
    """A foreground that is slower by itself ends its background's trial, and the next trial comes only later."""
    controller = Controller(BOUND)
    tried = passed = False
    while not passed:
        controller.collocated(controller.share, 0.1, 9, 0.001)
        tried, passed = tried or controller.share < 1, tried and controller.share == 1 and controller.drift > 0
    controller.change_bound(0.01)
    seen = 0
    while controller.share == 1 and seen < 60:
        controller.collocated(controller.share, 0.1 + 0.03, 9, 0.001)
        seen += 1
    assert seen < 12


def shares_of(controller, slowdown, iterations):
    """The share of each iteration, of a background that slows by so much whatever its share."""
    shares = []
    for _ in range(iterations):
        shares.append(controller.share)
        controller.collocated(shares[-1], slowdown, 20, 0.001)
    return shares


def test_a_background_is_settled_while_it_is_unrestricted_and_not_on_trial():
    controller = Controller(BOUND)
    assert controller.is_settled
    shares_of(controller, 0.0, 20)
    assert controller.is_settled
    assert not Controller(BOUND, cautious=True).is_settled
    while controller.share == 1.0:
        controller.collocated(1.0, 0.5, 20, 0.001)
    # Now on trial.
    assert not controller.is_settled


def test_a_restricted_background_is_tried_at_four_times_its_share():
    controller = Controller(BOUND)
    for _ in range(200):
        share = controller.share
        controller.collocated(share, 1.0 * share, 20, 0.001)
    restricted = controller.share
    assert restricted == pytest.approx(0.9 * BOUND, rel=0.01)
    tried = shares_of(controller, 1.0, 40)
    assert tried[0] == restricted
    # Of each four iterations of the trial one has the least share.
    first = tried.index(MIN_SHARE)
    assert tried[first + 1 : first + 4] == [pytest.approx(4 * restricted)] * 3


def until_tried(controller: Controller, slowdown: float) -> int:
    """Collocated iterations of a slowdown that is not the background's, until it is on trial."""
    count = 0
    while controller.share == 1:
        controller.collocated(1.0, slowdown, 10, 0.0)
        count += 1
    return count


def test_a_background_that_was_tried_in_vain_is_left_alone_for_longer_each_time_up_to_four_times():
    controller, slowdown, waits = Controller(BOUND), 0.0, []
    for _ in range(5):
        # More than the bound, but less than what leads to a trial at any time.
        slowdown += 0.1
        waits.append(until_tried(controller, slowdown))
        while controller.drift != pytest.approx(slowdown):
            controller.collocated(controller.share, slowdown, 10, 0.0)
    assert waits[1:] == [TRIAL_INTERVAL, 2 * TRIAL_INTERVAL, 4 * TRIAL_INTERVAL, 4 * TRIAL_INTERVAL]


def test_a_background_stays_unrestricted_if_its_trial_shows_nothing_for_certain():
    controller = Controller(BOUND)
    until_tried(controller, 0.1)
    for _ in range(MAX_ITERATIONS):
        # Twice the bound, but the noise is larger.
        controller.collocated(controller.share, 2 * BOUND * controller.share, 10, 1.0)
    assert controller.share == 1


# -- what a trial did not attribute to the background -------------------------------------------------


def drifted(drift: float) -> Controller:
    """A controller whose last trial left a slowdown that has another cause, and one iteration beside it since."""
    controller = Controller(BOUND)
    controller.drift = drift
    controller.collocated(1.0, drift, 1, 0.0)
    return controller


@pytest.mark.parametrize(("drift", "needed"), [(0.0, False), (BOUND, False), (BOUND * 1.01, True)])
def test_iterations_alone_are_needed_if_the_drift_exceeds_the_bound(drift, needed):
    controller = drifted(drift)
    assert (controller.needs_baseline, controller.is_settled) == (needed, not needed)


@pytest.mark.parametrize(
    ("drift", "shift", "share"),
    [
        # Twice the bound is not suspicious, and of a slower machine at least half of the slowdown remains.
        (2 * BOUND, 0.0, 1.0),
        (2.1 * BOUND, 0.0, MIN_SHARE),
        (0.2, 0.099, MIN_SHARE),
        (0.2, 0.101, 1.0),
    ],
)
def test_a_slowdown_that_two_baselines_in_a_row_contradict_is_the_backgrounds(drift, shift, share):
    controller = drifted(drift)
    controller.alone(shift)
    assert (controller.share, controller.drift) == (1.0, 0.0)
    controller.drift = drift
    controller.alone(shift)
    assert controller.share == share


def test_two_baselines_with_a_confirmation_between_them_contradict_nothing():
    controller = drifted(0.2)
    for shift in (0.0, 0.2, 0.0):
        controller.drift = 0.2
        controller.alone(shift)
    assert controller.share == 1.0
    controller.drift = 0.2
    controller.alone(0.0)
    assert controller.share == MIN_SHARE


def test_a_new_bound_scales_a_restricted_share_and_starts_the_count_of_contradictions_again():
    controller = drifted(0.2)
    controller.alone(0.0)
    controller.change_bound(2 * BOUND)
    controller.drift = 0.2
    controller.alone(0.0)
    assert controller.share == 1.0


@pytest.mark.parametrize(("noise", "iterations"), [(0.02, 8), (0.04, 24)])
def test_a_sudden_slowdown_is_not_the_backgrounds_as_soon_as_half_of_it_is_refuted(noise, iterations):
    """Of 20 % at a noise of 2 % two blocks refute 10 %; that it is less than 3 % would take six."""
    controller = Controller(BOUND)
    for _ in range(20):
        controller.collocated(1.0, 0.0, 9, noise)
    for _ in range(4):
        assert controller.share == 1.0
        controller.collocated(1.0, 0.2, 9, noise)
    assert controller.share == MIN_SHARE
    trial = 0
    while controller.drift == 0.0:
        controller.collocated(controller.share, 0.2, 9, noise)
        trial += 1
    assert (controller.share, controller.drift) == (1.0, pytest.approx(0.2))
    assert trial <= iterations


def test_a_background_that_had_the_least_share_whatever_it_cost_is_suspected_again_once_it_is_unrestricted():
    controller = drifted(0.2)
    for _ in range(2):
        controller.drift = 0.2
        controller.alone(0.0)
    assert controller.share == MIN_SHARE
    grown = [controller.share]
    while controller.share < 1:
        controller.collocated(controller.share, 0.0, 9, 0.0)
        grown += [controller.share] if controller.share != grown[-1] else []
    # In small steps: each at most 1.5 times the share before it.
    assert grown == pytest.approx([min(1.0, MIN_SHARE * 1.5**step) for step in range(len(grown))])
    assert until_tried(controller, 0.5) < 10

"""Limits of each iteration: iterations without background, banned operators, and the estimates behind them."""

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base.sharing import Sharing
from deeppool.scheduling.background_limits import FREE, BackgroundLimits
from deeppool.scheduling.controller import MIN_SHARE
from deeppool.scheduling.feedback import ENOUGH, EVENT_FLOOR, FIRST_BAN, FLOOR, LONGEST_BAN, Feedback
from deeppool.scheduling.governor import DENSE, Governor, combine, is_alone
from tests.sampling import examples

FORWARD, SYNC = ("forward", 0), ("sync", 0)
LATE = pytest.mark.parametrize("late", [False, True])


def run(governor, plant, iterations, *, noise=0.0, seed=0, late=False):
    """Returns the limits of all iterations.

    ``plant(iteration, limits)`` gives the time per operator. With ``late``, the governor learns an iteration's times
    only after the next one has ended.
    """
    draw = random.Random(seed)
    history, arriving = [], []
    for iteration in range(iterations):
        limits = governor.begin(iteration)
        history.append(limits)
        taken = {what: time * draw.lognormvariate(0, noise) for what, time in plant(iteration, limits).items()}
        if late:
            for seen in arriving:
                governor.learn(seen)
            arriving = [governor.observe(sum(taken.values()), taken)]
        else:
            governor.end(sum(taken.values()), taken)
    return history


def doubling_sync(until=10**9, sync=0.01):
    """All-reduces take twice as long beside a background."""

    def plant(iteration, limits):
        beside = limits.open and SYNC not in limits.banned and iteration < until
        return {FORWARD: 0.09, SYNC: sync * (2 if beside else 1)}

    return plant


def banned(history, operator=SYNC):
    """Numbers of iterations in which an operator was banned."""
    return [number for number, limits in enumerate(history) if operator in limits.banned]


def run_lengths(numbers):
    """Lengths of runs of consecutive numbers."""
    starts = [number for number in numbers if number - 1 not in set(numbers)]
    ends = [number for number in numbers if number + 1 not in set(numbers)]
    return [end - start + 1 for start, end in zip(starts, ends, strict=True)]


def test_iterations_without_background_are_dense_at_first_and_then_rare():
    alone = [number for number in range(2000) if is_alone(number)]
    assert alone[:16] == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 288, 289, 290, 291]
    assert sum(number >= DENSE for number in alone) <= 0.02 * (2000 - DENSE)


def test_closer_observation_schedules_more_iterations_without_background():
    alone = [number for number in range(1000) if is_alone(number, closely=True)]
    assert alone[::4] == [0, 8, 16, *range(48, 1000, 48)]
    assert alone == [first + number for first in alone[::4] for number in range(4)]


@LATE
@pytest.mark.parametrize("bound", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("priority", ["lowest", "normal"])
def test_a_background_that_costs_its_share_is_kept_to_its_bound(priority, bound, late):
    def plant(_, limits):
        return {FORWARD: 0.1 * (1 + limits.share * limits.open)}

    governor = Governor(Sharing(priority=priority, max_slowdown=bound))
    history = run(governor, plant, 400, noise=0.01, late=late)
    assert 0.3 * bound < fmean(limits.share for limits in history[150:] if limits.open) < 1.5 * bound


@LATE
def test_the_bound_holds_for_the_warmed_up_training(late):
    """The training is 10 % slower at first and the background costs its share: the bound applies to the later times."""

    def plant(iteration, limits):
        alone = 0.1 * (1.1 if iteration < 30 else 1.0)
        return {FORWARD: alone * (1 + limits.share * limits.open)}

    governor = Governor(Sharing(priority="normal", max_slowdown=0.05))
    history = run(governor, plant, 280, noise=0.01, late=late)
    assert fmean(limits.share for limits in history[150:] if limits.open) < 0.06


@pytest.mark.parametrize("recorded", [True, False])
def test_iteration_times_recorded_without_a_background_count_too(recorded):
    """A training that became a tenth faster between two backgrounds, of which the second costs 4 %."""
    governor = Governor(Sharing(max_slowdown=0.01))
    run(governor, lambda *_: {FORWARD: 0.11}, DENSE)
    if recorded:
        governor.alone([0.1] * 30)
    shares = []
    for iteration in range(DENSE, 120):
        limits = governor.begin(iteration)
        shares.append(limits.share)
        governor.end(0.1 * (1 + 0.04 * limits.share * limits.open), {})
    if recorded:
        assert shares[40:] == pytest.approx([0.9 * 0.01 / 0.04] * len(shares[40:]), rel=0.05)
    else:
        assert set(shares) == {1.0}


def test_without_feedback_and_bound_no_limit_is_set_and_nothing_measured():
    governor = Governor(Sharing(pieces=2))
    assert run(governor, doubling_sync(), 50) == [FREE] * 50
    assert governor.slowdown is None


def test_limits_are_closed_in_scheduled_iterations_without_background():
    history = run(Governor(Sharing(max_slowdown=0.1)), doubling_sync(sync=0.005), 300)
    assert [not limits.open for limits in history] == [is_alone(number) for number in range(300)]


@LATE
def test_an_uncertain_controller_soon_gets_iterations_without_background(late):
    """50 % slower at any share looks like a slower machine until two blocks without background refute it."""

    def plant(_, limits):
        return {FORWARD: 0.15 if limits.open else 0.1}

    history = run(Governor(Sharing(max_slowdown=0.03)), plant, 200, noise=0.01, late=late)
    assert max(limits.share for limits in history[120:]) < 3 * MIN_SHARE
    assert sum(not limits.open for limits in history[DENSE:]) <= 5 * 4


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
def test_a_slowed_operator_is_banned_soon_and_nearly_always(noise):
    history = run(Governor(Sharing(feedback=0.1)), doubling_sync(), 1000, noise=noise)
    assert min(banned(history)) <= 30
    assert len(banned(history)) > 900
    assert len(banned(history, FORWARD)) < 150


def test_each_ban_is_twice_as_long_and_needs_a_shorter_trial():
    history = run(Governor(Sharing(feedback=0.1)), doubling_sync(), 1200)
    assert run_lengths(banned(history))[:4] == [FIRST_BAN, 2 * FIRST_BAN, 4 * FIRST_BAN, 8 * FIRST_BAN]
    gaps = [
        sum(history[number].open for number in range(before + 1, after))
        for before, after in zip(banned(history), banned(history)[1:], strict=False)
        if after > before + 1
    ]
    assert set(gaps) == {1}


def test_a_ban_ends_when_the_operator_is_no_longer_slowed():
    history = run(Governor(Sharing(feedback=0.1)), doubling_sync(until=200), 2 * LONGEST_BAN)
    assert max(banned(history)) < 200 + 8 * FIRST_BAN


def test_no_ban_is_longer_than_the_longest(monkeypatch):
    longest = 16 * FIRST_BAN
    monkeypatch.setattr("deeppool.scheduling.feedback.LONGEST_BAN", longest)
    feedback, history = Feedback(0.1), []
    for iteration in range(3 * longest):
        history.append(BackgroundLimits(open=True, share=1.0, banned=feedback.banned(iteration)))
        feedback.alone({SYNC: 0.01})
        feedback.collocated(iteration, {SYNC: 0.01 if history[-1].banned else 0.02})
    assert max(run_lengths(banned(history))) == longest


def test_after_a_ban_only_new_times_of_the_operator_count():
    """15 % is above the threshold, but one iteration is not enough evidence for a new ban."""
    feedback = Feedback(0.1)
    for iteration in range(ENOUGH):
        feedback.alone({SYNC: 0.01})
        feedback.collocated(iteration, {SYNC: 0.02})
    assert feedback.banned(ENOUGH) == {SYNC}
    feedback.collocated(ENOUGH + FIRST_BAN, {SYNC: 0.0115})
    assert feedback.banned(ENOUGH + FIRST_BAN + 1) == frozenset()
    feedback.collocated(ENOUGH + FIRST_BAN + 1, {SYNC: 0.02})
    assert feedback.banned(ENOUGH + FIRST_BAN + 2) == {SYNC}


@examples(25)
@given(st.integers(0, 10**6), st.floats(0.0, 0.3), st.floats(0.0, 2.0))
def test_every_ban_ends(seed, noise, harm):
    def plant(_, limits):
        beside = limits.open and SYNC not in limits.banned
        return {FORWARD: 0.09, SYNC: 0.01 * (1 + harm * beside)}

    history = run(Governor(Sharing(feedback=0.1)), plant, 1000, noise=noise, seed=seed)
    assert all(length <= LONGEST_BAN for length in run_lengths(banned(history)))
    last = max(banned(history), default=0)
    governor = Governor(Sharing(feedback=0.1))
    run(governor, plant, 100, noise=noise, seed=seed)
    assert last == 0 or governor.begin(100 + LONGEST_BAN).banned == frozenset()


def test_noise_of_an_operator_that_is_short_bans_nothing_unless_a_device_times_it():
    history = run(Governor(Sharing(feedback=0.1)), doubling_sync(sync=FLOOR), 300)
    assert banned(history) == []
    history = run(Governor(Sharing(feedback=0.1), by_events=True), doubling_sync(sync=FLOOR), 300)
    assert banned(history) != []
    history = run(Governor(Sharing(feedback=0.1), by_events=True), doubling_sync(sync=EVENT_FLOOR), 300)
    assert banned(history) == []


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.02, 0.05, 0.15])
def test_noise_alone_rarely_bans(noise):
    def plant(*_):
        return {FORWARD: 0.09, SYNC: 0.01}

    # One false ban of half a run is in the sum of a few seeds what it is not in that of many.
    found = [run(Governor(Sharing(feedback=0.1)), plant, 600, noise=noise, seed=seed) for seed in range(60)]
    assert sum(len(banned(history)) for history in found) < 0.1 * 60 * 600


def test_a_ban_that_does_not_help_is_lifted():
    """The all-reduce waits for another rank, whose background slows it down whatever this rank does."""

    def plant(_, limits):
        return {FORWARD: 0.09, SYNC: 0.02 if limits.open else 0.01}

    history = run(Governor(Sharing(feedback=0.1)), plant, 1000)
    assert run_lengths(banned(history))[0] <= ENOUGH + 4
    assert len(banned(history)) < 60


def test_feedback_bans_operators_before_the_share_changes():
    governor = Governor(Sharing(feedback=0.1, max_slowdown=0.03))
    history = run(governor, doubling_sync(), 400, noise=0.01)
    assert {limits.share for limits in history} == {1.0}
    assert len(banned(history)) > 350


def test_the_slowdown_has_a_standard_error():
    governor = Governor(Sharing(max_slowdown=10.0))
    assert governor.slowdown is None
    run(governor, lambda _, limits: {FORWARD: 0.1 * (1.2 if limits.open else 1)}, 300, noise=0.02)
    found = governor.slowdown
    assert abs(found.mean - 0.2) < 4 * found.error < 0.05
    assert (found.alone, found.collocated) == (
        sum(is_alone(number) and number % 4 > 0 for number in range(300)),
        sum(not is_alone(number) for number in range(4, 300)),
    )


def test_a_slower_machine_is_not_attributed_to_the_background():
    governor = Governor(Sharing(max_slowdown=0.03))

    def plant(iteration, _):
        return {FORWARD: 0.1 if iteration < 250 else 0.12}

    shares = [limits.share for limits in run(governor, plant, 1000, noise=0.01)]
    assert shares[240] == 1.0
    assert shares[-1] == 1.0


def run_ranks(governors, plant, iterations, *, noise=0.0, seed=0):
    """Runs several ranks as :func:`run`; returns the seconds and the limits of all iterations.

    ``plant(limits)`` gives the time per operator on each rank.
    """
    draw = random.Random(seed)
    seconds, history = [], []
    for iteration in range(iterations):
        limits = [governor.begin(iteration) for governor in governors]
        taken = [{what: time * draw.lognormvariate(0, noise) for what, time in rank.items()} for rank in plant(limits)]
        # The ranks wait for the slowest.
        seconds.append(max(sum(rank.values()) for rank in taken))
        clocks = [seconds[-1] * draw.lognormvariate(0, noise / 5) for _ in governors]
        seen = [governor.observe(*own) for governor, *own in zip(governors, clocks, taken, strict=True)]
        for governor in governors:
            governor.learn(combine(seen))
        history.append(limits)
    return seconds, history


@pytest.mark.parametrize("priority", ["normal", "lowest"])
@pytest.mark.parametrize("cost", [0.3, 1.0])
def test_ranks_that_wait_for_one_another_hold_their_bound_together(cost, priority):
    """Each rank alone would see no effect of its own background while the other ranks have theirs."""

    def plant(limits):
        return [{FORWARD: 0.1 * (1 + cost * rank.share * rank.open)} for rank in limits]

    sharing = Sharing(max_slowdown=0.05, priority=priority)
    seconds, history = run_ranks([Governor(sharing) for _ in range(3)], plant, 400, noise=0.02)
    beside = [taken / 0.1 - 1 for taken, limits in zip(seconds[200:], history[200:], strict=True) if limits[0].open]
    # The slowest of three draws is above the mean, alone too.
    alone = [taken / 0.1 - 1 for taken, limits in zip(seconds, history, strict=True) if not limits[0].open]
    assert 0.02 < fmean(beside) - fmean(alone) < 0.06
    assert all(len({rank.share for rank in limits}) == 1 for limits in history)


def test_each_rank_bans_its_own_slowed_operators_and_all_leave_the_rest_to_feedback():
    def plant(limits):
        return [doubling_sync()(0, limits[0]), {FORWARD: 0.1}]

    _, history = run_ranks(
        [Governor(Sharing(feedback=0.1, max_slowdown=0.03)) for _ in range(2)], plant, 400, noise=0.01
    )
    assert len(banned([rank for rank, _ in history])) > 350
    assert len(banned([rank for _, rank in history])) < 20
    assert {rank.share for limits in history for rank in limits} == {1.0}

"""Orders of each iteration: when the foreground is alone, which operators are banned, and what is known of both."""

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base.sharing import Sharing
from deeppool.scheduling.background_limits import FREE, BackgroundLimits
from deeppool.scheduling.controller import MIN_SHARE
from deeppool.scheduling.feedback import ENOUGH, FIRST_BAN, FLOOR, LONGEST_BAN, Feedback
from deeppool.scheduling.governor import DENSE, Governor, combine, is_alone
from tests.sampling import examples

FORWARD, SYNC = ("forward", 0), ("sync", 0)
LATE = pytest.mark.parametrize("late", [False, True])


def run(governor, plant, iterations, *, noise=0.0, seed=0, late=False):
    """Orders; ``plant(iteration, orders)`` says by operator what it takes. Late: learned when another has ended."""
    draw = random.Random(seed)
    told, arriving = [], []
    for iteration in range(iterations):
        limits = governor.begin(iteration)
        told.append(limits)
        taken = {what: time * draw.lognormvariate(0, noise) for what, time in plant(iteration, limits).items()}
        if late:
            for seen in arriving:
                governor.learn(seen)
            arriving = [governor.observe(sum(taken.values()), taken)]
        else:
            governor.end(sum(taken.values()), taken)
    return told


def doubling_sync(until=10**9, sync=0.01):
    """All-reduces take twice as long beside a background."""

    def plant(iteration, limits):
        beside = limits.open and SYNC not in limits.banned and iteration < until
        return {FORWARD: 0.09, SYNC: sync * (2 if beside else 1)}

    return plant


def banned(told, operator=SYNC):
    """Numbers of iterations in which an operator was banned."""
    return [number for number, limits in enumerate(told) if operator in limits.banned]


def stretches(numbers):
    """Lengths of runs of consecutive numbers."""
    starts = [number for number in numbers if number - 1 not in set(numbers)]
    ends = [number for number in numbers if number + 1 not in set(numbers)]
    return [end - start + 1 for start, end in zip(starts, ends, strict=True)]


def test_iterations_alone_are_dense_at_first_and_then_rare():
    alone = [number for number in range(2000) if is_alone(number)]
    assert alone[:16] == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 288, 289, 290, 291]
    assert sum(number >= DENSE for number in alone) <= 0.02 * (2000 - DENSE)


def test_where_they_are_worth_more_iterations_alone_come_more_often():
    alone = [number for number in range(1000) if is_alone(number, closely=True)]
    assert alone[::4] == [0, 8, 16, *range(48, 1000, 48)]
    assert alone == [first + number for first in alone[::4] for number in range(4)]


@LATE
@pytest.mark.parametrize("bound", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("priority", ["lowest", "normal"])
def test_a_background_that_costs_its_share_is_held(priority, bound, late):
    def plant(_, limits):
        return {FORWARD: 0.1 * (1 + limits.share * limits.open)}

    governor = Governor(Sharing(priority=priority, max_slowdown=bound))
    told = run(governor, plant, 400, noise=0.01, late=late)
    assert 0.3 * bound < fmean(limits.share for limits in told[150:] if limits.open) < 1.5 * bound


@LATE
def test_a_training_that_warms_up_is_not_held_too_loosely(late):
    """A tenth slower at first, and a background that costs its share of the time: the bound is on what it is later."""

    def plant(iteration, limits):
        alone = 0.1 * (1.1 if iteration < 30 else 1.0)
        return {FORWARD: alone * (1 + limits.share * limits.open)}

    governor = Governor(Sharing(priority="normal", max_slowdown=0.05))
    told = run(governor, plant, 280, noise=0.01, late=late)
    assert fmean(limits.share for limits in told[150:] if limits.open) < 0.06


@pytest.mark.parametrize("told", [True, False])
def test_what_an_iteration_takes_while_there_is_no_background_counts_too(told):
    """A training that became a tenth faster between two backgrounds, of which the second costs 4 %."""
    governor = Governor(Sharing(max_slowdown=0.01))
    run(governor, lambda *_: {FORWARD: 0.11}, DENSE)
    if told:
        governor.alone([0.1] * 30)
    shares = []
    for iteration in range(DENSE, 120):
        limits = governor.begin(iteration)
        shares.append(limits.share)
        governor.end(0.1 * (1 + 0.04 * limits.share * limits.open), {})
    if told:
        assert shares[40:] == pytest.approx([0.9 * 0.01 / 0.04] * len(shares[40:]), rel=0.05)
    else:
        assert set(shares) == {1.0}


def test_without_feedback_and_bound_nothing_is_forbidden_or_measured():
    governor = Governor(Sharing(pieces=2))
    assert run(governor, doubling_sync(), 50) == [FREE] * 50
    assert governor.slowdown is None


def test_orders_are_closed_where_the_schedule_says():
    told = run(Governor(Sharing(max_slowdown=0.1)), doubling_sync(sync=0.005), 300)
    assert [not limits.open for limits in told] == [is_alone(number) for number in range(300)]


@LATE
def test_while_a_controller_doubts_it_is_soon_shown_what_an_iteration_takes_alone(late):
    """Half as slow again at any share: it looks like a slower machine, which two blocks alone show that it is not."""

    def plant(_, limits):
        return {FORWARD: 0.15 if limits.open else 0.1}

    told = run(Governor(Sharing(max_slowdown=0.03)), plant, 200, noise=0.01, late=late)
    assert max(limits.share for limits in told[120:]) < 3 * MIN_SHARE
    assert sum(not limits.open for limits in told[DENSE:]) <= 5 * 4


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
def test_an_operator_that_suffers_is_banned_soon_and_nearly_always(noise):
    told = run(Governor(Sharing(feedback=0.1)), doubling_sync(), 1000, noise=noise)
    assert min(banned(told)) <= 30
    assert len(banned(told)) > 900
    assert len(banned(told, FORWARD)) < 150


def test_each_ban_is_twice_as_long_and_needs_a_shorter_trial():
    told = run(Governor(Sharing(feedback=0.1)), doubling_sync(), 1200)
    assert stretches(banned(told))[:4] == [FIRST_BAN, 2 * FIRST_BAN, 4 * FIRST_BAN, 8 * FIRST_BAN]
    gaps = [
        sum(told[number].open for number in range(before + 1, after))
        for before, after in zip(banned(told), banned(told)[1:], strict=False)
        if after > before + 1
    ]
    assert set(gaps) == {1}


def test_a_ban_ends_when_the_operator_no_longer_suffers():
    told = run(Governor(Sharing(feedback=0.1)), doubling_sync(until=200), 2 * LONGEST_BAN)
    assert max(banned(told)) < 200 + 8 * FIRST_BAN


def test_no_ban_is_longer_than_the_longest():
    feedback, told = Feedback(0.1), []
    for iteration in range(3 * LONGEST_BAN):
        told.append(BackgroundLimits(open=True, share=1.0, banned=feedback.banned(iteration)))
        feedback.alone({SYNC: 0.01})
        feedback.collocated(iteration, {SYNC: 0.01 if told[-1].banned else 0.02})
    assert max(stretches(banned(told))) == LONGEST_BAN


def test_after_a_ban_only_what_the_operator_takes_now_counts():
    """15 % slower is more than it may be, but once is no proof, and no return of what the ban was for."""
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

    told = run(Governor(Sharing(feedback=0.1)), plant, 1000, noise=noise, seed=seed)
    assert all(length <= LONGEST_BAN for length in stretches(banned(told)))
    last = max(banned(told), default=0)
    governor = Governor(Sharing(feedback=0.1))
    run(governor, plant, 100, noise=noise, seed=seed)
    assert last == 0 or governor.begin(100 + LONGEST_BAN).banned == frozenset()


def test_noise_of_an_operator_that_is_short_bans_nothing():
    told = run(Governor(Sharing(feedback=0.1)), doubling_sync(sync=FLOOR), 300)
    assert banned(told) == []


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.15])
def test_noise_alone_bans_little(noise):
    def plant(*_):
        return {FORWARD: 0.09, SYNC: 0.01}

    # One false ban of half a run is in the sum of a few seeds what it is not in that of many.
    found = [run(Governor(Sharing(feedback=0.1)), plant, 600, noise=noise, seed=seed) for seed in range(60)]
    assert sum(len(banned(told)) for told in found) < 0.1 * 60 * 600


def test_a_ban_that_does_not_help_is_lifted():
    """The all-reduce waits for another rank, whose background slows it down whatever this rank does."""

    def plant(_, limits):
        return {FORWARD: 0.09, SYNC: 0.02 if limits.open else 0.01}

    told = run(Governor(Sharing(feedback=0.1)), plant, 1000)
    assert stretches(banned(told))[0] <= ENOUGH + 4
    assert len(banned(told)) < 60


def test_operators_are_left_to_feedback_before_the_share_moves():
    governor = Governor(Sharing(feedback=0.1, max_slowdown=0.03))
    told = run(governor, doubling_sync(), 400, noise=0.01)
    assert {limits.share for limits in told} == {1.0}
    assert len(banned(told)) > 350


def test_the_slowdown_is_known_with_its_error():
    governor = Governor(Sharing(max_slowdown=10.0))
    assert governor.slowdown is None
    run(governor, lambda _, limits: {FORWARD: 0.1 * (1.2 if limits.open else 1)}, 300, noise=0.02)
    found = governor.slowdown
    assert abs(found.mean - 0.2) < 4 * found.error < 0.05
    assert (found.alone, found.collocated) == (
        sum(is_alone(number) and number % 4 > 0 for number in range(300)),
        sum(not is_alone(number) for number in range(4, 300)),
    )


def test_a_machine_that_grows_slower_is_not_the_background_s_fault():
    governor = Governor(Sharing(max_slowdown=0.03))

    def plant(iteration, _):
        return {FORWARD: 0.1 if iteration < 250 else 0.12}

    shares = [limits.share for limits in run(governor, plant, 1000, noise=0.01)]
    assert shares[240] == 1.0
    assert shares[-1] == 1.0


def as_one(governors, plant, iterations, *, noise=0.0, seed=0):
    """As :func:`run`, of several ranks: ``plant(orders)`` says what each one's operators take. Seconds, and orders."""
    draw = random.Random(seed)
    seconds, told = [], []
    for iteration in range(iterations):
        limits = [governor.begin(iteration) for governor in governors]
        taken = [{what: time * draw.lognormvariate(0, noise) for what, time in rank.items()} for rank in plant(limits)]
        # The ranks wait for the slowest.
        seconds.append(max(sum(rank.values()) for rank in taken))
        clocks = [seconds[-1] * draw.lognormvariate(0, noise / 5) for _ in governors]
        seen = [governor.observe(*own) for governor, *own in zip(governors, clocks, taken, strict=True)]
        for governor in governors:
            governor.learn(combine(seen))
        told.append(limits)
    return seconds, told


@pytest.mark.parametrize("priority", ["normal", "lowest"])
@pytest.mark.parametrize("cost", [0.3, 1.0])
def test_ranks_that_wait_for_one_another_hold_their_bound_together(cost, priority):
    """By itself each would see that its own background makes no difference, as long as the others have theirs."""

    def plant(limits):
        return [{FORWARD: 0.1 * (1 + cost * rank.share * rank.open)} for rank in limits]

    sharing = Sharing(max_slowdown=0.05, priority=priority)
    seconds, told = as_one([Governor(sharing) for _ in range(3)], plant, 400, noise=0.02)
    beside = [taken / 0.1 - 1 for taken, limits in zip(seconds[200:], told[200:], strict=True) if limits[0].open]
    # The slowest of three draws is above the mean, alone too.
    alone = [taken / 0.1 - 1 for taken, limits in zip(seconds, told, strict=True) if not limits[0].open]
    assert 0.02 < fmean(beside) - fmean(alone) < 0.06
    assert all(len({rank.share for rank in limits}) == 1 for limits in told)


def test_each_rank_bans_what_suffers_on_it_and_all_leave_it_to_feedback():
    def plant(limits):
        return [doubling_sync()(0, limits[0]), {FORWARD: 0.1}]

    _, told = as_one([Governor(Sharing(feedback=0.1, max_slowdown=0.03)) for _ in range(2)], plant, 400, noise=0.01)
    assert len(banned([rank for rank, _ in told])) > 350
    assert len(banned([rank for _, rank in told])) < 20
    assert {rank.share for limits in told for rank in limits} == {1.0}

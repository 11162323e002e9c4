"""Bans of operators that a background slows, recorded time after recorded time."""

import pytest

from deeppool.scheduling.feedback import ENOUGH, FIRST_BAN, TRIAL, Feedback

SYNC = ("sync", 0)
TYPICAL, SLOWED = 0.010, 0.020


def feedback_with(*alone: float) -> Feedback:
    """Returns feedback with a tolerance of a tenth and known times alone."""
    feedback = Feedback(0.1)
    for seconds in alone:
        feedback.alone({SYNC: seconds})
    return feedback


def banned_feedback() -> Feedback:
    """Returns feedback that bans the operator from iteration 3 on."""
    feedback = feedback_with(*[TYPICAL] * ENOUGH)
    for iteration in range(ENOUGH):
        feedback.collocated(iteration, {SYNC: SLOWED})
    return feedback


def ban_after(feedback: Feedback, last: int) -> int:
    """Returns for how many iterations after the last recorded one the operator is banned."""
    banned = [bool(feedback.banned(iteration)) for iteration in range(last + 1, last + 1000)]
    assert banned == sorted(banned, reverse=True)
    return sum(banned)


def test_an_operator_that_is_only_known_alone_is_neither_banned_nor_on_trial() -> None:
    feedback = feedback_with(TYPICAL)
    assert ban_after(feedback, -1) == 0
    assert not any(map(feedback.trying, range(5)))


def test_a_trial_takes_as_many_iterations_as_a_decision_needs_times() -> None:
    feedback = feedback_with(TYPICAL)
    feedback.collocated(5, {SYNC: TYPICAL})
    assert [feedback.trying(iteration) for iteration in (7, 8)] == [True, False]
    feedback.collocated(6, {SYNC: TYPICAL})
    assert not feedback.trying(8)


# A tenth of 10 ms and 50 us are ignored.
@pytest.mark.parametrize(("slowed", "expected"), [(0.01104, 0), (0.01106, FIRST_BAN)])
def test_a_ban_follows_three_times_beyond_the_tolerance_and_the_floor(slowed: float, expected: int) -> None:
    feedback = feedback_with(*[TYPICAL] * ENOUGH)
    for iteration in range(ENOUGH):
        assert not feedback.banned(iteration)
        feedback.collocated(iteration, {SYNC: slowed})
    assert ban_after(feedback, ENOUGH - 1) == expected


def test_two_times_alone_are_not_enough_for_a_ban() -> None:
    feedback = feedback_with(TYPICAL, TYPICAL)
    for iteration in range(TRIAL):
        feedback.collocated(iteration, {SYNC: SLOWED})
    assert ban_after(feedback, TRIAL - 1) == 0
    feedback.alone({SYNC: TYPICAL})
    feedback.collocated(TRIAL, {SYNC: SLOWED})
    assert ban_after(feedback, TRIAL) == FIRST_BAN


# The median of three normal times has pi/2 of the variance of their mean. Three standard errors of the difference of
# two medians of three times with a median deviation of 1 ms are 3 x 1.4826 ms x sqrt(pi/2 x 2/3) = 4.55 ms.
@pytest.mark.parametrize(("difference", "significant"), [(0.0045, False), (0.0046, True)])
def test_times_that_scatter_must_differ_by_three_standard_errors(difference: float, significant: bool) -> None:
    feedback = feedback_with(TYPICAL - 1e-3, TYPICAL + 1e-3, TYPICAL)
    slowed = TYPICAL + difference
    for iteration, seconds in enumerate((slowed - 1e-3, slowed + 1e-3, slowed)):
        feedback.collocated(iteration, {SYNC: seconds})
    assert bool(feedback.banned(ENOUGH)) is significant


@pytest.mark.parametrize(("seconds", "again"), [(0.0149, False), (0.0151, True)])
def test_one_time_nearer_to_the_cause_of_the_last_ban_than_to_the_typical_one_repeats_it(
    seconds: float, again: bool
) -> None:
    feedback, after = banned_feedback(), 3 + FIRST_BAN
    feedback.collocated(after, {SYNC: seconds})
    assert ban_after(feedback, after) == (2 * FIRST_BAN if again else 0)


# The times alone have a standard deviation of 1.4826 x 2 ms: two of them are 5.93 ms, more than half of the slowdown.
@pytest.mark.parametrize(("seconds", "again"), [(0.0158, False), (0.0160, True)])
def test_such_a_time_must_be_longer_than_noise_alone_explains(seconds: float, again: bool) -> None:
    feedback = feedback_with(TYPICAL - 2e-3, TYPICAL, TYPICAL + 2e-3)
    for iteration in range(ENOUGH):
        feedback.collocated(iteration, {SYNC: SLOWED})
    after = 3 + FIRST_BAN
    assert ban_after(feedback, ENOUGH - 1) == FIRST_BAN
    feedback.collocated(after, {SYNC: seconds})
    assert bool(feedback.banned(after + 1)) is again


def test_a_good_trial_halves_the_next_ban_and_forgets_the_cause_of_the_last_one() -> None:
    feedback = banned_feedback()
    second = 3 + FIRST_BAN
    feedback.collocated(second, {SYNC: SLOWED})
    third = second + 1 + 2 * FIRST_BAN
    assert feedback.banned(third - 1)
    # The next ban would be of four times the length.
    for iteration in range(third, third + TRIAL):
        feedback.collocated(iteration, {SYNC: TYPICAL})
    # Of the nine latest times five must be slowed.
    slowed = range(third + TRIAL, third + TRIAL + 5)
    for iteration in slowed:
        assert not feedback.banned(iteration)
        feedback.collocated(iteration, {SYNC: SLOWED})
    assert ban_after(feedback, slowed[-1]) == 2 * FIRST_BAN


def test_a_ban_under_which_the_operator_stays_slow_ends_and_is_not_repeated_for_twice_its_length() -> None:
    feedback = banned_feedback()
    for iteration in (3, 4, 5):
        assert feedback.banned(iteration)
        feedback.collocated(iteration, {SYNC: SLOWED})
    exempt = range(6, 6 + 2 * FIRST_BAN)
    for iteration in exempt:
        assert not feedback.banned(iteration)
        feedback.collocated(iteration, {SYNC: SLOWED})
    assert not feedback.banned(exempt.stop)
    feedback.collocated(exempt.stop, {SYNC: SLOWED})
    assert feedback.banned(exempt.stop + 1)


@pytest.mark.parametrize(("seconds", "helps"), [(0.0149, True), (0.0151, False)])
def test_a_ban_helps_if_the_operator_comes_nearer_to_its_typical_time(seconds: float, helps: bool) -> None:
    feedback = banned_feedback()
    for iteration in (3, 4, 5):
        feedback.collocated(iteration, {SYNC: seconds})
    assert bool(feedback.banned(6)) is helps

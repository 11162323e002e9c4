"""Launches that the gate delays: in-flight limits, a share of the time, gaps, bans."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deeppool.base.sharing import Sharing
from deeppool.scheduling.background_limits import FREE, BackgroundLimits
from deeppool.scheduling.gate import Gate
from deeppool.scheduling.pacing import WINDOW

FORWARD, SYNC = ("forward", 0), ("sync", 0)
TIMES = st.floats(1e-5, 0.05)
DOINGS = st.sampled_from([None, FORWARD, SYNC, ("backward", 1)])


@st.composite
def event_sequences(draw):
    """Draws events of a gate: time passes, a piece requests a launch during an activity, the oldest piece ends."""
    return draw(st.lists(st.tuples(TIMES, DOINGS, TIMES, st.booleans(), st.floats(0.5, 2)), min_size=1, max_size=80))


def launches(gate, limits, events):
    """Yields (time, expected seconds of the pieces in flight) after each launch."""
    now, in_flight = 0.0, []
    for passed, doing, expected, ends, actual in events:
        now += passed
        if ends and in_flight:
            gate.finished(actual * in_flight.pop(0))
        if gate.admits(now, limits, doing, expected):
            gate.launched(expected)
            in_flight.append(expected)
            yield now, list(in_flight)


@settings(deadline=None)
@given(event_sequences(), st.integers(1, 4), st.floats(1e-4, 0.1))
def test_pieces_in_flight_keep_both_limits_except_for_a_single_piece(events, pieces, seconds):
    for _, in_flight in launches(Gate(Sharing(pieces=pieces, in_flight=seconds)), FREE, events):
        assert len(in_flight) <= pieces
        assert len(in_flight) == 1 or sum(in_flight) <= seconds


def test_a_piece_longer_than_the_limit_runs_by_itself():
    gate = Gate(Sharing(in_flight=0.001))
    assert gate.admits(0.0, FREE, None, 0.005)
    gate.launched(0.005)
    assert not gate.admits(0.0, FREE, None, 0.0001)
    gate.finished(0.005)
    assert gate.admits(0.005, FREE, None, 0.005)


@settings(deadline=None)
@given(event_sequences(), st.floats(0.01, 0.9))
@example([(1e-5, None, 0.05, False, 1.0)] * 3, 0.01)
def test_launches_take_no_more_than_the_share_and_the_saved_budget(events, share):
    exact = [(*before, 1.0) for *before, _ in events]
    gate = Gate(Sharing())
    launched = [
        (now, in_flight[-1])
        for now, in_flight in launches(gate, BackgroundLimits(open=True, share=share, banned=frozenset()), exact)
    ]
    for first, (began, _) in enumerate(launched):
        for last in range(first, len(launched)):
            taken = sum(seconds for _, seconds in launched[first : last + 1])
            longest = max(seconds for _, seconds in launched[first : last + 1])
            assert taken <= share * (launched[last][0] - began + WINDOW) + 2 * longest + 1e-9


def test_a_background_that_always_requests_uses_its_whole_share():
    gate, limits = Gate(Sharing()), BackgroundLimits(open=True, share=0.25, banned=frozenset())
    taken = sum(_request(gate, step / 1000, limits, FORWARD, 0.001) for step in range(10_000))
    assert taken == pytest.approx(0.25 * 10, abs=0.25 * WINDOW + 0.001)


def test_a_share_goes_to_gaps_first():
    """Half of the time is a gap: with less than half of the time earned, nothing is left to run beside computing."""
    gate, limits = Gate(Sharing()), BackgroundLimits(open=True, share=0.3, banned=frozenset())
    taken = {None: 0.0, FORWARD: 0.0}
    for step in range(10_000):
        doing = None if step // 10 % 2 else FORWARD
        taken[doing] += _request(gate, step / 1000, limits, doing, 0.001)
    assert taken[None] == pytest.approx(3, rel=0.05)
    assert taken[FORWARD] == 0


def _request(gate, now, limits, doing, seconds):
    if not gate.admits(now, limits, doing, seconds):
        return 0.0
    gate.launched(seconds)
    gate.finished(seconds)
    return seconds


def test_pieces_longer_than_expected_are_paid_for():
    gate, limits = Gate(Sharing()), BackgroundLimits(open=True, share=0.5, banned=frozenset())
    taken = 0.0
    for step in range(10_000):
        if gate.admits(step / 1000, limits, None, 0.001):
            gate.launched(0.001)
            gate.finished(0.003)
            taken += 0.003
    assert taken == pytest.approx(5, rel=0.01)


def test_a_share_of_one_delays_no_launch():
    gate = Gate(Sharing())
    assert all(_request(gate, 0.0, FREE, FORWARD, 1.0) for _ in range(10))


@pytest.mark.parametrize(("doing", "admitted"), [(None, True), (SYNC, True), (FORWARD, False), (("update", 3), False)])
def test_gaps_only_admits_pieces_only_while_the_foreground_does_not_compute(doing, admitted):
    assert Gate(Sharing(gaps_only=True)).admits(0.0, FREE, doing, 0.001) is admitted


@settings(deadline=None)
@given(event_sequences())
def test_no_piece_starts_during_a_banned_operator_or_while_the_gate_is_closed(events):
    closed = BackgroundLimits(open=False, share=1.0, banned=frozenset())
    assert list(launches(Gate(Sharing()), closed, events)) == []
    banned = [(passed, SYNC, *rest) for passed, _, *rest in events]
    limits = BackgroundLimits(open=True, share=1.0, banned=frozenset({SYNC}))
    assert list(launches(Gate(Sharing()), limits, banned)) == []
    assert Gate(Sharing()).admits(0.0, limits, ("sync", 1), 0.001)

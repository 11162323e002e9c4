"""A background on a virtual clock against closed forms, a simulation in small steps and figure 11."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppool import figures
from deeppool.base.sharing import Sharing
from deeppool.errors import InvalidValueError
from deeppool.simulation.device.collocated import DeviceModel, SimulatedPiece, SimulatedStep, simulate_collocated
from tests.sampling import examples
from tests.simulation.device.small_steps import simulate as in_small_steps

FOREGROUND = (
    SimulatedStep(kind="forward", stage=0, seconds=8e-3),
    SimulatedStep(kind="forward", stage=1, seconds=1e-3, idle=4e-3),
    SimulatedStep(kind="backward", stage=1, seconds=2e-3),
    SimulatedStep(kind="backward", stage=0, seconds=14e-3, idle=6e-3),
    SimulatedStep(kind="sync", stage=0, seconds=5e-3),
    SimulatedStep(kind="update", stage=1, seconds=1e-3),
)
COMPUTING = tuple(replace(step, kind="backward") for step in FOREGROUND)
"""The same without a kind in which the foreground waits."""
IDLE, BUSY = 10e-3, 31e-3
PIECES = (SimulatedPiece(seconds=5e-4),) * 4


def equal(step, piece):
    return 0.5, 0.5


def prioritised(step, piece):
    """Rates at which an all-reduce takes twice as long with a background, other work hardly longer."""
    return (0.45, 0.6) if step.kind == "sync" else (0.97, 0.12)


def fully_preempted(step, piece):
    return 1.0, 0.0


def gpu(sharing, pieces=PIECES, rates=prioritised, **options):
    return simulate_collocated(FOREGROUND, pieces, sharing, DeviceModel(rates=rates), **{"iterations": 50, **options})


def test_a_preempted_background_takes_the_idle_time_and_costs_nothing():
    device = DeviceModel(rates=fully_preempted, preempts=True, queue=1)
    found = simulate_collocated(FOREGROUND, PIECES, Sharing(), device, iterations=20)
    assert found.slowdown == pytest.approx(0, abs=1e-9)
    assert found.harvest_of_idle == pytest.approx(1)
    assert found.idle_share == pytest.approx(IDLE / (IDLE + BUSY))


def test_two_of_equal_priority_without_idle_time_share_a_cpu_by_halves():
    device = DeviceModel(rates=equal, preempts=True, queue=1)
    busy = [replace(step, idle=0.0) for step in FOREGROUND]
    found = simulate_collocated(busy, PIECES, Sharing(priority="normal"), device, iterations=20)
    assert found.slowdown == pytest.approx(1)
    assert found.harvest == pytest.approx(0.5)


def test_gaps_only_costs_the_remainder_of_the_pieces_in_flight_at_each_return():
    """The gaps of 4 and 6 ms hold 3 and 4 pieces of 1.7 ms; the foreground then waits for the last one to end."""
    device = DeviceModel(rates=prioritised)
    found = simulate_collocated(
        COMPUTING, [SimulatedPiece(seconds=1.7e-3)], Sharing(gaps_only=True, pieces=1), device, iterations=50
    )
    assert found.iteration_time == pytest.approx(IDLE + BUSY + (3 * 1.7e-3 - 4e-3) + (4 * 1.7e-3 - 6e-3))
    assert found.work == pytest.approx(50 * 7 * 1.7e-3)


@given(st.floats(1e-4, 2e-3), st.integers(1, 4), st.floats(1e-4, 3e-3))
@examples(30)
def test_pacing_bounds_what_each_return_waits_for(seconds, pieces, limit):
    """The in-flight limits bound the wait; it is the only cost if the background slows nothing."""
    sharing = Sharing(gaps_only=True, pieces=pieces, in_flight=limit)
    found = gpu(sharing, (SimulatedPiece(seconds=seconds),), rates=lambda *_: (1.0, 1.0), iterations=5)
    waited = found.iteration_time - found.alone_time
    assert -1e-12 <= waited <= 2 * max(seconds, min(limit, pieces * seconds)) + 1e-12


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 2, 7])), min_size=1, max_size=4),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.sampled_from([(1.0, 0.0), (0.5, 0.5), (1.0, 1.0), (1.0, 0.5), (0.5, 1.0)]),
    st.integers(1, 5),
    st.sampled_from(["preempts", "lowest", "normal"]),
)
@settings(deadline=None)
def test_the_event_simulation_equals_the_one_in_small_time_steps(steps, pieces, pair, in_flight, kind):
    """Whole seconds and these rates make every time a multiple of a half, exactly."""
    steps = [
        SimulatedStep(kind="forward", stage=stage, seconds=seconds, idle=idle)
        for stage, (seconds, idle) in enumerate(steps)
    ]
    pieces = [SimulatedPiece(seconds=seconds) for seconds in pieces]
    preempts, private = kind == "preempts", 0 if kind == "normal" else 2
    device = DeviceModel(rates=lambda *_: pair, preempts=preempts)
    sharing = Sharing(pieces=in_flight, priority="normal" if kind == "normal" else "lowest")
    found = simulate_collocated(steps, pieces, sharing, device, iterations=3)
    expected = in_small_steps(
        steps, pieces, pair, in_flight=in_flight, preempts=preempts, private=private, iterations=3
    )
    assert (found.elapsed, found.work) == expected


@given(st.floats(0.2, 1.0), st.floats(0.0, 1.0), st.sampled_from([None, 1, 3]), st.floats(0, 0.1))
@examples(30)
def test_completed_work_does_not_exceed_the_time(foreground, background, pieces, noise):
    """While both are on the device it goes at no more than the sum of their rates."""
    found = gpu(Sharing(pieces=pieces), rates=lambda *_: (foreground, background), iterations=20, noise=noise)
    done = 20 * (found.alone_time - IDLE) + found.work
    assert done <= found.elapsed * max(1.0, foreground + background) + 1e-9
    assert found.elapsed == pytest.approx(20 * found.iteration_time)


def test_each_added_mechanism_reduces_the_foreground_slowdown():
    """The ladder of figure 11; numbers are those of this device, not of the paper's."""
    small = [SimulatedPiece(seconds=1.5e-4)] * 4
    options = {"iterations": 400, "noise": 0.02}
    naive = gpu(Sharing(priority="normal"), rates=equal, **options)
    priorities = gpu(Sharing(), **options)
    paced = gpu(Sharing(pieces=2, in_flight=1e-3), **options)
    feedback = gpu(Sharing(pieces=2, in_flight=1e-3, feedback=0.1), **options)
    smaller = gpu(Sharing(pieces=2, in_flight=1e-3, feedback=0.1), small, **options)
    slowdowns = [found.slowdown for found in (naive, priorities, paced, feedback, smaller)]
    assert slowdowns == sorted(slowdowns, reverse=True)
    assert naive.slowdown > 1
    assert paced.slowdown < 0.25 * priorities.slowdown
    assert feedback.slowdown < 0.5 * paced.slowdown
    assert ("sync", 0) in dict(feedback.bans)
    assert smaller.harvest_of_idle > 1


@pytest.mark.parametrize("bound", [0.01, 0.02, 0.05])
def test_the_controller_holds_the_bound_and_keeps_the_gaps(bound):
    small = [SimulatedPiece(seconds=1.5e-4)] * 4
    sharing = Sharing(pieces=2, in_flight=3e-4, feedback=0.1, max_slowdown=bound)
    found = gpu(sharing, small, iterations=500, noise=0.02)
    assert found.slowdown < 1.2 * bound
    assert found.harvest_of_idle > 0.9


def test_the_controller_does_not_limit_a_harmless_background():
    device = DeviceModel(rates=fully_preempted, preempts=True, queue=1)
    sharing = Sharing(feedback=0.1, max_slowdown=0.01)
    found = simulate_collocated(FOREGROUND, PIECES, sharing, device, iterations=1000, noise=0.05)
    assert {share for share in found.shares if share} == {1.0}
    assert found.harvest_of_idle > 0.95


def test_the_figure_shows_each_way_of_sharing_by_its_name():
    found = [gpu(Sharing(pieces=pieces), iterations=20) for pieces in (1, 8)]
    figure = figures.trade_off(found)
    assert [trace.name for trace in figure.data] == ["priority lowest, pieces 1", "priority lowest, pieces 8"]
    assert [trace.x[0] for trace in figure.data] == [100 * one.slowdown for one in found]
    assert [trace.y[0] for trace in figure.data] == [100 * one.harvest for one in found]
    with pytest.raises(InvalidValueError, match="cannot draw nothing"):
        figures.trade_off([])


def test_a_simulation_prints_as_a_sentence():
    text = str(gpu(Sharing(pieces=2, feedback=0.1), iterations=100))
    assert text.startswith("priority lowest, pieces 2, feedback 0.1: slowdown ")
    assert "sync of stage 0" in text


@pytest.mark.parametrize(
    ("steps", "pieces"),
    [
        ([], PIECES),
        (FOREGROUND, []),
        ([SimulatedStep(kind="forward", stage=0, seconds=0.0)], PIECES),
        (FOREGROUND, [SimulatedPiece(seconds=-1.0)]),
    ],
)
def test_empty_work_is_refused(steps, pieces):
    with pytest.raises(InvalidValueError, match=r"at least one|longer than 0 s"):
        simulate_collocated(steps, pieces, Sharing(), DeviceModel(rates=equal))

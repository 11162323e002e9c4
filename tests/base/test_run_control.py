"""A bound that is changed while a run goes on: who may, what the run hears, and what its record says."""

import threading

import pytest

import deeppool as dp
from deeppool.base.run_control import BoundInterval, RunControl, refusal
from deeppool.base.sharing import POLICIES, Sharing, find_sharing
from deeppool.collocation.condition_results import BoundResults, assign_to_bounds, last_measured
from deeppool.errors import InvalidValueError
from tests.figures.records import two_layer_plan

BOUND = Sharing(max_slowdown=0.05)


def test_the_run_hears_the_newest_bound_once() -> None:
    run_control = RunControl()
    run_control.open(BOUND)
    assert (run_control.bound, run_control.take(), run_control.refusal) == (0.05, None, None)
    run_control.change_bound(0.02)
    run_control.change_bound(0.01)
    assert (run_control.bound, run_control.take(), run_control.take()) == (0.01, 0.01, None)


def test_who_asks_before_the_run_has_begun_waits_for_it() -> None:
    run_control, asked = RunControl(), threading.Event()

    def ask() -> None:
        run_control.change_bound(0.02)
        asked.set()

    thread = threading.Thread(target=ask)
    thread.start()
    assert not asked.wait(0.05)
    run_control.open(BOUND)
    thread.join(300)
    assert run_control.take() == 0.02


@pytest.mark.parametrize(
    ("policy", "bound", "phrase"),
    [
        ("none", None, "no background job"),
        ("naive", None, "nothing measures what the background costs"),
        ("nice", None, "start it with a bound"),
        ("priority", None, "or with policy 'feedback'"),
        ("paced", None, "pieces 2"),
        ("feedback", None, None),
        ("priority", 0.03, None),
        ("naive", 0.03, None),
    ],
)
def test_only_a_run_that_learns_what_its_background_costs_can_change_its_bound(policy, bound, phrase) -> None:
    why = refusal(find_sharing(policy, bound))
    assert (why is None) == (phrase is None)
    if why is not None:
        assert phrase in why
        run_control = RunControl()
        run_control.open(find_sharing(policy, bound))
        with pytest.raises(InvalidValueError, match="the bound cannot be changed: "):
            run_control.change_bound(0.01)


def test_every_policy_has_an_answer() -> None:
    assert {name: refusal(sharing) is None for name, sharing in POLICIES.items()} == {
        **dict.fromkeys(POLICIES, False),
        "feedback": True,
    }


def test_no_bound_and_a_run_that_is_over_are_refused() -> None:
    run_control = RunControl()
    run_control.open(BOUND)
    with pytest.raises(InvalidValueError, match="max_slowdown must"):
        run_control.change_bound(-0.01)
    with pytest.raises(InvalidValueError, match="max_slowdown must be a number, got True"):
        run_control.change_bound(True)
    assert (run_control.bound, run_control.take()) == (0.05, None)
    run_control.close()
    with pytest.raises(InvalidValueError, match="the run is over"):
        run_control.change_bound(0.01)


def test_a_call_that_holds_no_bound_says_which_one_does() -> None:
    def work(*, on_progress=None) -> None:
        return None

    run = dp.start(work)
    run.result(300)
    with pytest.raises(InvalidValueError, match=r"work holds none while it runs \(dp.launch and dp.train do\)"):
        run.change_bound(0.01)
    assert (run.samples, run.bound) == ((), None)


# -- what was measured under each -----------------------------------------------------------------------


def answers(times: list[float], *bounds: list[int]) -> list[dict]:
    spans = [[("forward", 0, "stage", 0.0, seconds)] for seconds in times]
    return [{"times": times, "bounds": numbers, "spans": spans} for numbers in bounds]


def test_iterations_go_to_the_bound_that_all_ranks_held() -> None:
    bounds = [BoundResults(0.05, 0.0), BoundResults(0.01, 3.0), BoundResults(0.02, 4.0)]
    assign_to_bounds(answers([1.0, 2.0, 3.0, 4.0, 5.0], [0, 0, 1, 1, 2], [0, 1, 1, 2, 2]), bounds)
    assert [one.rounds for one in bounds] == [[[1.0]], [[3.0]], [[5.0]]]
    assign_to_bounds(answers([6.0], [2], [2]), bounds)
    assert [one.rounds for one in bounds] == [[[1.0], []], [[3.0], []], [[5.0], [6.0]]]
    assert last_measured(bounds) is bounds[2]
    bounds.append(BoundResults(0.5, 9.0))
    assign_to_bounds(answers([7.0, 8.0], [2, 3], [2, 3]), bounds)
    assert bounds[3].rounds == [[], [], [8.0]], "of the rounds before, it has none"
    assert last_measured(bounds) is bounds[3]
    assert last_measured([BoundResults(None, 0.0)]).bound is None
    assert [one.typical.timeline(two_layer_plan(2)).duration for one in bounds] == [1.0, 3.0, 6.0, 8.0]


def test_what_was_measured_under_a_bound_is_told_in_a_line() -> None:
    results = BoundResults(0.05, 0.0)
    results.rounds += [[1.0], [1.1]]
    results.work.steps, results.work.seconds = 6.0, 2.0
    interval = results.interval(alone=1.0, batch=4)
    assert interval == BoundInterval(0.05, 0.0, 2, 1.05, pytest.approx(0.05), 12.0)
    assert str(interval) == "5 % from the start: 2 iterations, slowdown +5.0 %, background 12 samples/s"
    assert str(BoundResults(0.01, 3.2).interval(1.0, 4)) == "1 % from 3.2 s on: nothing was measured under it"

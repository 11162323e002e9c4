"""Confidence intervals of a run, from its rounds."""

import pytest

from deeppool.collocation.background_jobs import WorkDone
from deeppool.collocation.condition_results import ConditionResults, harvest_margin, slowdown_margin

SPEEDS = (1.0, 1.3, 0.8, 1.1)
"""Of a machine, from round to round."""


def rounds(slowdowns: list[float]) -> list[list[float]]:
    """Twenty iterations each."""
    return [[0.1 * speed * (1 + slowdown)] * 20 for speed, slowdown in zip(SPEEDS, slowdowns, strict=True)]


def test_on_a_machine_of_varying_speed_a_mean_is_uncertain_and_a_slowdown_is_not() -> None:
    alone, collocated = rounds([0.0] * 4), rounds([0.05] * 4)
    measured = ConditionResults(alone, [4.0], 8.4)
    spread = measured.phase(batch=8).iteration_time.margin
    # 3.18 standard errors at three degrees of freedom; of means of 0.1, 0.13, 0.08 and 0.11 s.
    assert spread == pytest.approx(3.18 * 0.020817 / 2, rel=1e-3)
    assert slowdown_margin(alone, collocated) == pytest.approx(0.0, abs=1e-12)
    assert slowdown_margin(alone, rounds([0.0, 0.05, 0.1, 0.05])) > 0.04


def test_rounds_in_which_a_bound_was_not_held_yet_count_for_the_foreground_alone() -> None:
    alone, collocated = rounds([0.0] * 4), rounds([0.05] * 4)
    assert slowdown_margin(alone, [[], [], *collocated[2:]]) > 0
    assert slowdown_margin(alone, [[], [], [], collocated[3]]) is None


def test_an_iteration_lasts_until_its_slowest_rank_ends() -> None:
    results = ConditionResults()
    results.add([{"times": times, "busy": 0.0, "wall": 4.0, "run_delays": []} for times in ([1.0, 3.0], [2.0, 2.0])])
    assert results.rounds == [[2.0, 2.0]]


def work(*phases: tuple[float, float]) -> WorkDone:
    return WorkDone(steps=sum(steps for steps, _ in phases), seconds=sum(s for _, s in phases), phases=list(phases))


def test_the_interval_of_a_harvest_is_as_wide_as_its_rounds_differ() -> None:
    """The collocated background is half as fast, however fast the machine is."""
    alone, collocated = work((10.0, 2.0), (20.0, 2.0), (30.0, 2.0)), work((5.0, 2.0), (10.0, 2.0), (15.0, 2.0))
    assert harvest_margin(alone, collocated) == pytest.approx(0.0, abs=1e-12)
    assert harvest_margin(alone, work((5.0, 2.0), (10.0, 2.0), (5.0, 2.0))) > 0.1


def test_the_rounds_of_a_bound_that_came_late_are_the_last_ones() -> None:
    late = WorkDone()
    for number, steps in ((1, 10.0), (2, 15.0)):
        late.steps += steps
        late.seconds += 2.0
        late.end_round(number)
    assert late.phases == [(0.0, 0.0), (10.0, 2.0), (15.0, 2.0)]


def test_a_background_that_did_nothing_alone_has_no_interval() -> None:
    assert harvest_margin(work((0.0, 2.0), (0.0, 2.0)), work((1.0, 2.0), (1.0, 2.0))) is None

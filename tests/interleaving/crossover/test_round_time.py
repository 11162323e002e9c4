"""Predicted times against the longest path through everything that waits for something."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppool.errors import InvalidValueError
from deeppool.interleaving.crossover.record import CrossoverJob, CrossoverRecord
from deeppool.interleaving.crossover.round_time import (
    JobCosts,
    apart_round_time,
    crossover_round_time,
    data_parallel_round_time,
    sequential_round_time,
)

times = st.floats(0.01, 10.0)
costs = st.lists(st.tuples(times, st.floats(0.0, 10.0)), min_size=1, max_size=4)


def jobs_of(pairs: list[tuple[float, float]]) -> list[JobCosts]:
    return [JobCosts(str(number), compute, communication) for number, (compute, communication) in enumerate(pairs)]


def longest_path(pairs: list[tuple[float, float]], steps: int) -> float:
    """The time of all steps of all jobs, each of which starts once all that it waits for has ended."""
    computed = transferred = 0.0
    ended = [0.0] * len(pairs)
    for _ in range(steps):
        for job, (compute, communication) in enumerate(pairs):
            computed = max(computed, ended[job]) + compute
            ended[job] = transferred = max(computed, transferred) + communication
    return max(ended)


@settings(deadline=None, max_examples=50)
@given(costs)
def test_a_round_takes_what_the_longest_path_grows_by(pairs: list[tuple[float, float]]) -> None:
    few, many = 40, 280
    grown = longest_path(pairs, many) - longest_path(pairs, few)
    assert crossover_round_time(jobs_of(pairs)) == pytest.approx(grown / (many - few), rel=0.02)


@given(times, times, times, times)
def test_two_jobs_take_the_papers_formula(c1: float, m1: float, c2: float, m2: float) -> None:
    expected = max(c1, m2) + max(c2, m1)
    assert crossover_round_time(jobs_of([(c1, m1), (c2, m2)])) == pytest.approx(expected)


@given(times, st.floats(0.0, 10.0), st.integers(1, 4))
def test_equal_jobs_on_a_rank_each_take_no_longer_than_crossed_over(
    compute: float, transfer: float, ranks: int
) -> None:
    equal = jobs_of([(compute, transfer)] * ranks)
    apart = apart_round_time(equal, ranks)
    assert apart == ranks * compute
    assert apart <= crossover_round_time(equal) * (1 + 1e-12)
    # An unequal one keeps its rank busy, and the others wait: crossed over they take less.
    assert apart_round_time(jobs_of([(3.0, 0.0), (1.0, 0.0)]), 2) == 6.0
    assert apart_round_time(equal, ranks + 1) is None
    assert apart_round_time(equal, ranks, count=2) is None


def test_equal_jobs_gain_most_where_communication_is_as_long_as_computing() -> None:
    def gains(ratio: float) -> tuple[float, float]:
        pair = jobs_of([(1.0, ratio)] * 2)
        together = crossover_round_time(pair)
        return sequential_round_time(pair) / together, data_parallel_round_time(pair) / together

    assert gains(1.0) == (pytest.approx(2.0), pytest.approx(4 / 3))
    # What data parallelism hides itself is no gain.
    assert gains(0.5) == (pytest.approx(1.5), pytest.approx(1.0))
    assert gains(4.0) == (pytest.approx(1.25), pytest.approx(13 / 12))


def test_one_job_is_plain_synchronous_training() -> None:
    alone = jobs_of([(2.0, 3.0)])
    assert crossover_round_time(alone) == sequential_round_time(alone) == 5.0


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"compute": math.inf}, "costs of 'a' must be positive and finite, got inf s of computing"),
        ({"communication": True}, "communication of 'a' must be a number, got True"),
        ({"memory": 1.5}, r"memory of 'a' must be a whole number, got 1\.5"),
    ],
)
def test_costs_are_finite_numbers(costs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        JobCosts(**{"name": "a", "compute": 1.0, "communication": 1.0, **costs})


def test_costs_must_be_positive() -> None:
    with pytest.raises(InvalidValueError, match=r"costs of 'a' must be positive and finite, got 0 s of computing"):
        JobCosts("a", 0.0, 1.0)


def test_the_formula_of_a_record_is_of_the_jobs_that_have_not_left() -> None:
    def job(name: str, compute: float, **more: bool) -> CrossoverJob:
        return CrossoverJob(name, 8, 3, (), JobCosts(name, compute, 1.0), **more)

    jobs = (job("a", 2.0), job("b", 3.0), job("gone", 5.0, left=True))
    record = CrossoverRecord(jobs, 2, "cpu", "by hand", "library", (5.5,), (), None, "2026-11-29", {})
    assert (record.predicted, record.sequential) == (5.0, 7.0)
    assert "the formula says 5 s, +10 %)" in str(record)
    assert str(record).endswith("communicates 1 s a step; left")
    assert str(record).startswith("3 jobs on 2 ranks of by hand, all-reduce: library\n")
    single = str(replace(record, jobs=(replace(jobs[0], updates=1),), ranks=1))
    assert (
        single.startswith("1 job on 1 rank of by hand, all-reduce: library\n") and "\na: 1 update of batch 8" in single
    )
    unknown = replace(record, jobs=(*jobs, CrossoverJob("late", 8, 1, (), None)))
    assert (unknown.predicted, unknown.sequential) == (None, None)

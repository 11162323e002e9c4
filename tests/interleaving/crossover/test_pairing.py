"""Groups of jobs against all partitions, and what does not fit."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppool.errors import InvalidValueError, PlanError, RunError
from deeppool.interleaving.crossover.memory import JobMemory, check_memory
from deeppool.interleaving.crossover.pairing import pair_jobs
from deeppool.interleaving.crossover.round_time import JobCosts

MIB = 2**20


def partitions(items: list[JobCosts]) -> Iterator[list[list[JobCosts]]]:
    if not items:
        yield []
        return
    first, *rest = items
    for partition in partitions(rest):
        yield [[first], *partition]
        for number, group in enumerate(partition):
            yield [*partition[:number], [first, *group], *partition[number + 1 :]]


def time_of(group: list[JobCosts]) -> float:
    """A group's steps: whatever keeps one resource busiest, or one job's own way; alone, beside two thirds of it."""
    if len(group) == 1:
        return max(group[0].compute, group[0].compute / 3 + group[0].communication)
    return max(
        sum(job.compute for job in group),
        sum(job.communication for job in group),
        *(job.compute + job.communication for job in group),
    )


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.1, 9), st.floats(0, 9), st.integers(1, 60)), min_size=1, max_size=6),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(60, 200)),
)
def test_no_other_grouping_is_faster(costs: list[tuple[float, float, int]], together: int, memory: int | None) -> None:
    jobs = [JobCosts(str(number), *cost) for number, cost in enumerate(costs)]
    least = min(
        sum(map(time_of, partition))
        for partition in partitions(jobs)
        if all(len(group) <= together for group in partition)
        and (memory is None or all(sum(job.memory for job in group) <= memory for group in partition))
    )
    found = pair_jobs(jobs, memory=memory, together=together)
    # Jobs stay apart where it costs less than a thousandth.
    assert least <= found.round_time * (1 + 1e-9) <= least * 1.0011
    assert sorted(job.name for group in found.groups for job in group) == sorted(job.name for job in jobs)


def test_a_job_that_communicates_is_paired_with_one_that_computes() -> None:
    jobs = [JobCosts("talks", 1.0, 4.0), JobCosts("talks too", 1.5, 4.5), JobCosts("works", 4.0, 1.0)]
    jobs.append(JobCosts("works too", 4.5, 1.5))
    found = pair_jobs(jobs)
    assert [[job.name for job in group] for group in found.groups] == [["talks", "works"], ["talks too", "works too"]]
    assert found.round_time == 11.0
    assert str(found).startswith(
        "one step of each job takes 11 s, predicted: 2.00 times as fast as without any overlap"
    )


def test_jobs_without_communication_stay_apart() -> None:
    assert len(pair_jobs([JobCosts("a", 1.0, 0.0), JobCosts("b", 1.0, 0.0)]).groups) == 2


def test_jobs_that_memory_does_not_hold_are_refused() -> None:
    jobs = [JobCosts("a", 1.0, 1.0, 600 * MIB), JobCosts("b", 1.0, 1.0, 500 * MIB), JobCosts("c", 1.0, 0.5, 300 * MIB)]
    found = pair_jobs(jobs, memory=1000 * MIB)
    assert {tuple(job.name for job in group) for group in found.groups} in ({("a",), ("b", "c")}, {("a", "c"), ("b",)})
    assert found.refused == (("a", "b"),)
    assert "not together: a and b, which need more than 1000.0 MiB" in str(found)
    with pytest.raises(PlanError, match=r"'a' needs 600.* on each rank, which has 550.*smaller batch"):
        pair_jobs(jobs, memory=550 * MIB)
    with pytest.raises(InvalidValueError, match="the memory of 'd' is unknown"):
        pair_jobs([JobCosts("d", 1.0, 1.0)], memory=550 * MIB)


def test_activations_of_jobs_that_compute_by_turns_count_once() -> None:
    jobs = [JobMemory("a", state=300, activations=500), JobMemory("b", state=200, activations=400)]
    check_memory(jobs, 1000, keeps_activations=False)
    with pytest.raises(RunError, match=r"2 jobs need about 1.4 KiB of memory on each rank \(a 800 B, b 600 B\)"):
        check_memory(jobs, 1000, keeps_activations=True)
    with pytest.raises(RunError, match="fewer jobs together"):
        check_memory(jobs, 999, keeps_activations=False)

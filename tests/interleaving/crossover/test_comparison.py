"""Orders of the same jobs, measured on real ranks."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

import deeppool as dp
from deeppool.errors import InvalidValueError
from deeppool.interleaving.crossover import comparison
from deeppool.interleaving.crossover.comparison_record import APART, CROSSOVER, ORDERS
from deeppool.interleaving.crossover.round_time import JobCosts
from tests.interleaving.crossover.test_scheduler import make_job


@pytest.mark.slow
@pytest.mark.processes
def test_orders_are_measured_by_turns(tmp_path: Path) -> None:
    jobs = [make_job(), make_job()]
    found = dp.compare_orders(jobs, global_batch=8, ranks=2, all_reduce="ring", repetitions=2, rounds=2, buckets=[])
    assert [way.name for way in found.ways] == list(ORDERS)
    for way in found.ways:
        assert len(way.seconds) == 4
        assert min(way.seconds) > 0
        assert way.samples == 16
        assert (way.predicted is None) == (way.name == "shifted")
    # On a rank each, a job computes for both ranks and sends nothing.
    assert found.way("ranks of their own").note == "on 1 of 2 ranks each"
    lead = found.lead("crossover")
    assert lead is not None and (lead.controls, lead.missing) == (4, ())
    assert [job.name for job in found.jobs] == ["Sequential", "Sequential-2"]
    assert {span.kind for span in found.spans} == {"compute", "update", "transfer"}
    assert {span.rank for span in found.spans} == {0, 1}
    # On no rank do two jobs compute at once, and on no link are two transfers.
    for rank in range(2):
        for transfers in (True, False):
            row = [span for span in found.spans if span.rank == rank and (span.kind == "transfer") == transfers]
            assert all(before.end <= after.start for before, after in pairwise(row))
    assert dp.load(dp.save(found, tmp_path / "comparison.json")) == found


@pytest.mark.parametrize(("count", "predicted"), [(1, 8.0), (2, None)])
def test_a_prediction_is_that_of_the_number_of_ranks_that_was_the_fastest(
    count: int, predicted: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four jobs compute for 2 s on 4 ranks; on two ranks each they also transfer, and that is not measured."""
    costs = [JobCosts(str(job), 2.0, 1.0) for job in range(4)]
    monkeypatch.setattr(comparison, "_costs", lambda turns, names: (costs, costs))
    monkeypatch.setattr(comparison.measurements, "spans", lambda answers: ())
    rounds = {CROSSOVER: [SimpleNamespace(answers=[])]}
    turns = SimpleNamespace(rounds=rounds, seconds=lambda order: (9.0, 9.0), device_name="by hand")
    chosen = {CROSSOVER: {}, APART: {"count": count}}
    found = comparison._record(turns, {job.name: 8 for job in costs}, chosen, 4, "ring")
    assert found.way(APART).predicted == predicted
    assert found.way(APART).note == f"on {count} of 4 ranks each"
    assert found.way(CROSSOVER).predicted == 8.0


@pytest.mark.stress
@pytest.mark.processes
def test_jobs_are_measured_one_at_a_time() -> None:
    seen: list[tuple[str, float]] = []
    first, second = dp.measure_jobs(
        [make_job(), make_job()], global_batch=[8, 16], ranks=2, steps=4, on_progress=lambda *step: seen.append(step)
    )
    assert seen == [("measuring job 1 of 2", 0.0), ("measuring job 2 of 2", 0.5)]
    assert (first.name, second.name) == ("Sequential", "Sequential-2")
    assert min(first.compute, first.communication, second.compute, second.communication) > 0
    assert "alone on 2 ranks" in first.source
    assert len(dp.pair_jobs([first, second]).groups) in (1, 2)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="rounds must be at least 2, got 1"):
        dp.compare_orders([make_job()], global_batch=8, rounds=1)
    with pytest.raises(InvalidValueError, match="got 'backwards'"):
        dp.compare_orders([make_job()], global_batch=8, orders=["backwards"])
    with pytest.raises(InvalidValueError, match="name both"):
        dp.compare_orders([make_job()], global_batch=8, orders=["crossover"])


def test_on_other_devices_than_cpus_the_default_is_what_runs_there_and_ddp_is_refused_at_start() -> None:
    """DDP failed in the middle of a run, and ``shifted``, which the caller had not named, at the start."""
    assert comparison._checked([], None, "cpu", {}) == list(ORDERS)
    assert comparison._checked([], None, "cuda", {}) == [order for order in ORDERS if order != "shifted"]
    with pytest.raises(
        InvalidValueError,
        match=r"'data parallel' trains by .*, which does not run on device 'emulated' \(.*'one after the other'\]\)",
    ):
        dp.compare_orders([make_job()], global_batch=8, device="emulated")
    # A rank of one's own needs no DDP.
    orders = [CROSSOVER, "one after the other", APART]
    assert comparison._checked([], orders, "emulated", {APART: [1]}) == orders
    with pytest.raises(InvalidValueError, match="'ranks of their own' trains by"):
        dp.compare_orders([make_job()], global_batch=8, ranks=4, device="emulated", orders=orders)

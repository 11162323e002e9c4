"""Interference in the trade-off of figure 10: simulated plans beside backgrounds, partitions without."""

import pytest

from deeppool.base.sharing import Policy
from deeppool.errors import InvalidValueError
from deeppool.evaluation.experiments import interference as experiments_interference
from deeppool.evaluation.experiments.interference import emulated_interference, with_interference
from deeppool.planning.studies.collocation_tradeoff import share
from deeppool.simulation.device.interference import Arrangement, Interference
from tests.evaluation.experiments.test_scenarios import CLUSTER, PROFILE


def same_for_all(foreground: float, background: float) -> Interference:
    arrangement = Arrangement("lowest", ((foreground,),), ((background,),))
    return Interference("a device", "2026-11-21", "made up", (1.0,), (1e-3,), (arrangement,))


SHARED = share(PROFILE, CLUSTER, 16, PROFILE, background_batch=4, network_model="paper")


def simulated(interference: Interference, **options):
    return with_interference(SHARED, PROFILE, PROFILE, interference, "priority", network_model="paper", **options)


def test_a_background_that_costs_nothing_leaves_the_predicted_points() -> None:
    """The prediction fills every gap, by the formula of the trade-off's record."""
    found = simulated(same_for_all(1.0, 0.0), points=len(SHARED.points))
    assert [point.speedup for point in found.points] == pytest.approx([point.speedup for point in SHARED.points])
    assert [point.throughput for point in found.points] == pytest.approx(
        [point.throughput for point in SHARED.points], rel=0.05
    )


def test_a_foreground_that_is_slowed_down_is_slower_and_a_partition_is_not() -> None:
    found = simulated(same_for_all(0.5, 0.5))
    assert found.points[0].speedup < 0.95 * SHARED.points[0].speedup
    assert found.data_parallel_partitions == SHARED.data_parallel_partitions
    assert "interference as on a device, 2026-11-21" in str(found)
    for point in found.points:
        assert point.throughput == pytest.approx(point.foreground_throughput + point.background_throughput)
        assert point.speedup == pytest.approx(SHARED.single_gpu_iteration_time / point.iteration_time)


def test_without_a_background_there_is_nothing_to_simulate() -> None:
    with pytest.raises(InvalidValueError, match="policy 'none' has no background"):
        with_interference(SHARED, PROFILE, PROFILE, same_for_all(1.0, 0.0), "none")


@pytest.mark.slow
def test_an_emulated_gpu_slows_some_foregrounds_down_and_leaves_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every pair is measured.
    monkeypatch.setattr(experiments_interference, "MATRICES", (64, 1024))
    monkeypatch.setattr(experiments_interference, "DURATIONS", (1e-4, 1e-3))
    rates = sum(emulated_interference("a100-40").arrangements[0].foreground, ())
    assert min(rates) < 0.9 < sorted(rates)[len(rates) // 2] < 1.1


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "priority"), [("naive", "normal"), ("feedback", "lowest")])
def test_the_background_on_an_emulated_gpu_has_the_priority_of_its_policy(
    policy: Policy, priority: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments_interference, "MATRICES", (64,))
    monkeypatch.setattr(experiments_interference, "DURATIONS", (1e-4, 2e-4))
    (arrangement,) = emulated_interference("a100-40", policy).arrangements
    assert arrangement.name == priority


def test_plans_that_were_simulated_claim_no_bound() -> None:
    found = simulated(same_for_all(1.0, 0.0))
    assert (SHARED.optimality, found.optimality) == ("exact", "heuristic")
    answer = found.highest_throughput(found.points[-1].speedup)
    assert answer.optimality == "heuristic"
    assert answer.point == max(found.points, key=lambda point: point.throughput)
    assert found.fastest(0.0).optimality == "heuristic"

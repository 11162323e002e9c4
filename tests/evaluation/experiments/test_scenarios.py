"""Three scenarios: held against the plans and the analytic model that they come from."""

import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import InvalidValueError
from deeppool.evaluation.experiments.scenarios import three_scenarios
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.studies.collocation_tradeoff import share
from deeppool.simulation.device.interference import Arrangement, Interference
from tests.strategies import make_graph, profile_from_times

PROFILE = profile_from_times(make_graph([(), (0,)]), [lambda b: 0.5e-3 * b, lambda b: 8e-3])
HEAVY = profile_from_times(
    make_graph([(), (0,), (1,)], [[], [256], [256]], [2**22, 2**22, 2**24]),
    [lambda b: 1e-3 * b, lambda b: 2e-3 + 3e-4 * b, lambda b: 4e-3 + 1e-5 * b],
)
"""The fewer GPUs a layer has, the less it has to reduce over the links of SLOW."""
LINK = Link(1e9, 1e-5, "made by hand")
SLOW = Cluster(4, "by hand", 4, LINK, LINK, None)
CLUSTER = Cluster(4, inside=Link(1e12, 0.0, "made by hand"))


def test_data_parallelism_takes_what_its_plan_takes_and_trains_nothing_else():
    found = three_scenarios(PROFILE, CLUSTER, 16).scenario("DP")
    plan = data_parallel_plan(PROFILE, CLUSTER, 16)
    assert found.iteration_time == pytest.approx(plan.iteration_time)
    assert found.throughput == pytest.approx(16 / plan.iteration_time)
    assert found.background_throughput == 0


def test_data_parallelism_is_on_the_gpus_on_which_it_is_fastest():
    """One GPU computes for 27 ms; the sums of SLOW take 25 ms on two, which compute for 17 ms."""
    found = three_scenarios(HEAVY, SLOW, 16).scenario("DP")
    assert found.iteration_time == pytest.approx(16e-3 + 6.8e-3 + 4.16e-3)
    # The second job trains as fast on each of the others.
    assert found.throughput == pytest.approx(4 * 16 / found.iteration_time)


def test_without_interference_collocation_is_the_analytic_models_point():
    found = three_scenarios(PROFILE, CLUSTER, 16, foreground_loss=0.3, harvest_of_idle=0.5)
    alone, beside = found.scenario("BP"), found.scenario("BP + Col")
    shared = share(PROFILE, CLUSTER, 16, PROFILE, harvest_of_idle=0.5)
    speedup = max(0.7 * shared.points[0].speedup, shared.data_parallel.speedup)
    point = shared.highest_throughput(speedup).point
    assert alone.iteration_time == beside.iteration_time == pytest.approx(point.iteration_time)
    assert beside.foreground_throughput == pytest.approx(point.foreground_throughput)
    assert beside.background_throughput == pytest.approx(point.background_throughput)
    assert alone.background_throughput == pytest.approx((4 - point.gpus) / shared.background_sample_time)
    assert found.background_alone_throughput == shared.background_alone_throughput
    assert found.speedup("BP") == pytest.approx(point.speedup)
    assert found.gain("BP + Col", over="BP") == pytest.approx(point.throughput / point.foreground_throughput)


def test_the_plan_loses_no_more_than_asked_and_is_no_slower_than_data_parallelism():
    fastest = three_scenarios(HEAVY, SLOW, 16, foreground_loss=0.0)
    slower = three_scenarios(HEAVY, SLOW, 16, foreground_loss=0.9)
    assert fastest.scenario("BP").iteration_time < 0.95 * fastest.scenario("DP").iteration_time
    assert slower.scenario("BP + Col").throughput > fastest.scenario("BP + Col").throughput
    assert slower.scenario("BP").iteration_time <= slower.scenario("DP").iteration_time * (1 + 1e-9)
    assert fastest.scenario("BP").iteration_time < slower.scenario("BP").iteration_time


def test_measured_interference_costs_the_foreground_and_is_named():
    pairs = tuple(Arrangement(name, ((0.8,),), ((0.4,),)) for name in ("normal", "nice", "lowest"))
    measured = Interference("a device", "2026-11-21", "made up", (1.0,), (1e-3,), pairs)
    found = three_scenarios(PROFILE, CLUSTER, 16, interference=measured)
    assert found.scenario("BP + Col").iteration_time > 1.05 * found.scenario("BP").iteration_time
    assert found.modelled == "interference as on a device, 2026-11-21"
    assert "no interference" not in str(found)


@pytest.mark.parametrize("loss", [-0.1, 1.0])
def test_a_loss_that_is_no_share_is_refused(loss):
    with pytest.raises(InvalidValueError, match="foreground_loss must be from 0 to less than 1"):
        three_scenarios(PROFILE, CLUSTER, 16, foreground_loss=loss)


def test_gpus_that_the_foreground_leaves_train_backgrounds_in_every_scenario():
    stubborn = profile_from_times(make_graph([()], [[]], [2**22]), [lambda b: 8e-3 + 1e-5 * b])
    found = three_scenarios(stubborn, SLOW, 16, background_batch=16, foreground_loss=0.0)
    assert {gpu for layer in found.plan.layers for gpu in layer.gpus} == {0}
    for scenario in found.scenarios:
        assert scenario.background_throughput == pytest.approx(3 / 4 * found.background_alone_throughput)
    assert found.gain("BP + Col", over="DP") == pytest.approx(1)

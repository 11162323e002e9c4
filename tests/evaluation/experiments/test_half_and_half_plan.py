"""Half of the layers everywhere, half on one GPU: whatever the layers cost."""

import pytest

from deeppool.cluster.cluster import Cluster
from deeppool.errors import PlanError
from deeppool.evaluation.experiments.half_and_half_plan import half_and_half_plan
from deeppool.planning.check import check
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.simulation.plan.simulate import simulate
from tests.strategies import make_graph, profile_from_times

CHAIN = make_graph([(), (0,), (1,), (2,), (3,)])
ONE = profile_from_times(CHAIN, [lambda b, k=k: (k + 1) * 1e-3 * b for k in range(5)])
OTHER = profile_from_times(CHAIN, [lambda b, k=k: 5e-3 / (k + 1) for k in range(5)])


def test_gpus_are_the_same_for_any_layer_times():
    for profile in (ONE, OTHER):
        plan = half_and_half_plan(profile, 4, 8)
        assert [layer.gpus for layer in plan.layers] == [(0, 1, 2, 3)] * 2 + [(0,)] * 3


def test_each_half_costs_what_it_costs_in_a_plan_of_its_own_kind():
    plan = half_and_half_plan(ONE, 4, 8)
    wide, narrow = data_parallel_plan(ONE, 4, 8), data_parallel_plan(ONE, Cluster(1), 8)
    assert plan.layers[:2] == wide.layers[:2]
    assert plan.layers[3:] == narrow.layers[3:]
    # No bytes travel between them, in one latency there and one back.
    first = plan.layers[2]
    assert first.forward == narrow.layers[2].forward
    assert first.reshard == pytest.approx(2 * plan.cluster.link(4).latency)
    assert plan.iteration_time == pytest.approx(sum(layer.time for layer in plan.layers))
    assert plan.gpu_seconds == pytest.approx(sum(layer.time * layer.gpu_count for layer in plan.layers))


def test_it_takes_as_long_as_its_profile_says_where_all_reduces_overlap():
    heavy = profile_from_times(make_graph([(), (0,), (1,), (2,)], None, [10**6] * 4), [lambda b: 1e-3 * b] * 4)
    plan = half_and_half_plan(heavy, 4, 8)
    check(plan, heavy)
    assert plan.iteration_time == plan.schedule.iteration_time
    assert sorted(layer.all_reduce > 0 for layer in plan.layers) == [False, False, False, True]


def test_a_simulation_of_it_takes_as_long_and_leaves_the_others_idle():
    plan = half_and_half_plan(ONE, 4, 8)
    found = simulate(plan)
    assert found.iteration_time == pytest.approx(plan.iteration_time)
    busy = {gpu: sum(x.duration for x in found.timeline.spans if x.gpu == gpu and x.kind != "idle") for gpu in range(4)}
    assert busy[0] == pytest.approx(plan.iteration_time)
    assert busy[3] == pytest.approx(sum(layer.time for layer in plan.layers[:2]))


def test_more_gpus_than_samples_are_refused():
    with pytest.raises(PlanError, match="8 GPUs cannot share a global batch of 4"):
        half_and_half_plan(ONE, 8, 4)

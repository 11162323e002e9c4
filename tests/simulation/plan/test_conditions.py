"""Plans on GPUs of unlike speed and slow links, against a calculation GPU by GPU."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import InvalidValueError
from deeppool.profiling.iteration_check import IterationCheck
from deeppool.profiling.measure.sampling import spread, typical
from deeppool.records import files
from deeppool.simulation.plan.conditions import Conditions, profiled_conditions
from deeppool.simulation.plan.simulate import mean_held, sampled_activities, simulate
from tests.figures.records import layer, plan_of, two_layer_plan
from tests.planning.searched import plan
from tests.sampling import examples
from tests.simulation.cluster.reference_chain import iteration_time
from tests.strategies import (
    chain_graphs,
    computing_problems,
    contested_problems,
    make_graph,
    problems,
    profile_from_times,
    tied_problems,
)

PROBLEMS = st.one_of(contested_problems(), computing_problems(), tied_problems(contested_problems()))


def noisy_profile(*spreads, runs=9):
    checks = tuple(IterationCheck(2**index, 1.0, 1.0, spread, runs) for index, spread in enumerate(spreads))
    return replace(profile_from_times(make_graph([()]), [lambda b: 0.01]), checks=checks)


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_simulated_noise_reproduces_the_spread_of_the_profile(noise):
    """Times and spread of the drawn iterations, computed as a profile computes them."""
    conditions = profiled_conditions(noisy_profile(noise / 2, 3 * noise / 2), 3, seed=4)
    drawn = conditions.slowness(20_000, 3)
    for gpu in range(3):
        assert typical(drawn[:, gpu]) == pytest.approx(1, rel=noise / 50)
        assert spread(drawn[:, gpu]) == pytest.approx(noise, rel=0.03)
    assert conditions.seed == 4


def test_a_profile_without_noise_is_as_planned_and_one_of_unknown_noise_is_refused():
    assert profiled_conditions(noisy_profile(0.0), 2).as_planned
    with pytest.raises(InvalidValueError, match=r"holds no noise.*deeppool profile"):
        profiled_conditions(noisy_profile(), 2)


def test_two_iterations_give_no_estimate_of_the_noise():
    known, unknown = noisy_profile(0.1), noisy_profile(0.5, 0.4, runs=2)
    with pytest.raises(InvalidValueError, match=r"no batch size has more than 2 .* noise shows in 5 .*--seconds"):
        profiled_conditions(unknown, 2)
    both = replace(known, checks=(*known.checks, *unknown.checks))
    assert profiled_conditions(both, 2) == profiled_conditions(known, 2)


def spans_of(simulation):
    return sorted((x.gpu, x.kind, x.name, round(x.start, 12), round(x.end, 12)) for x in simulation.timeline.spans)


@examples(60)
@given(PROBLEMS, st.booleans())
def test_default_conditions_leave_the_simulation_unchanged(problem, overlap):
    profile, cluster, batch = problem
    made = plan(profile, cluster, batch, overlap_sync=overlap)
    planned, found = simulate(made), simulate(made, conditions=Conditions())
    assert found.iteration_time == pytest.approx(planned.iteration_time, rel=1e-12)
    assert found.gpu_seconds == pytest.approx(planned.gpu_seconds, rel=1e-9)
    assert len(found.iteration_times) == 1
    wide = [x for x in spans_of(planned) if x[4] - x[3] > 1e-9]
    assert [x for x in spans_of(found) if x[4] - x[3] > 1e-9] == wide


@examples(60)
@given(problems(chain_graphs()), st.data())
def test_a_chain_takes_the_time_of_the_reference_calculation(problem, data):
    profile, cluster, batch = problem
    cluster = replace(cluster, gpus_per_node=cluster.gpus)
    made = plan(profile, cluster, batch)
    speeds = tuple(data.draw(st.sampled_from([0.25, 0.5, 0.8, 1.0, 2.0])) for _ in range(made.gpus))
    bandwidth = data.draw(st.sampled_from([0.1, 0.5, 1.0]))
    found = simulate(made, conditions=Conditions(speeds=speeds, inside_bandwidth=bandwidth))
    assert found.iteration_time == pytest.approx(iteration_time(made, [1 / x for x in speeds], bandwidth))


@examples(40)
@given(PROBLEMS, st.booleans(), st.integers(0, 3))
def test_gpu_seconds_are_conserved_whatever_is_slow(problem, overlap, seed):
    profile, cluster, batch = problem
    made = plan(profile, cluster, batch, overlap_sync=overlap)
    found = simulate(made, conditions=Conditions(jitter=0.3, straggling=0.2, seed=seed), iterations=20)
    assert found.gpu_seconds + found.idle_gpu_seconds == pytest.approx(made.gpus * found.iteration_time)
    per_gpu = {gpu: sum(x.duration for x in found.timeline.spans if x.gpu == gpu) for gpu in range(made.gpus)}
    assert list(per_gpu.values()) == pytest.approx([found.iteration_time] * made.gpus)


@examples(40)
@given(PROBLEMS, st.booleans(), st.integers(0, 3))
def test_the_mean_time_that_a_gpu_is_held_is_that_of_the_spans_of_all_iterations(problem, overlap, seed):
    profile, cluster, batch = problem
    made = plan(profile, cluster, batch, overlap_sync=overlap)
    conditions = Conditions(speeds=(0.5,), jitter=0.3, straggling=0.2, delay=3.0, inside_bandwidth=0.7, seed=seed)
    expected = np.zeros(made.gpus)
    for work, _ in sampled_activities(made, conditions, 5):
        for one in work:
            expected[list(one.gpus)] += one.held / 5
    held, times = mean_held(made, conditions, 5)
    assert held == pytest.approx(expected)
    assert times == simulate(made, conditions=conditions, iterations=5).iteration_times


@examples(40)
@given(PROBLEMS, st.booleans(), st.data())
def test_no_iteration_is_faster_where_a_gpu_is_slower(problem, overlap, data):
    profile, cluster, batch = problem
    made = plan(profile, cluster, batch, overlap_sync=overlap)
    speeds = [data.draw(st.sampled_from([0.5, 1.0])) for _ in range(made.gpus)]
    slower = data.draw(st.integers(0, made.gpus - 1))
    before = simulate(made, conditions=Conditions(speeds=tuple(speeds))).iteration_time
    speeds[slower] *= 0.5
    after = simulate(made, conditions=Conditions(speeds=tuple(speeds))).iteration_time
    assert before * (1 - 1e-12) <= after <= 2 * before * (1 + 1e-12)


def test_a_fast_gpu_waits_for_a_slow_one_in_their_all_reduce():
    made = plan_of(layer("conv", 2, forward=1.0, backward=2.0, sync=0.5), gpus=2)
    found = simulate(made, conditions=Conditions(speeds=(1.0, 0.5)))
    assert found.iteration_time == pytest.approx(6.5)
    spans = [(x.gpu, x.kind, x.start, x.end) for x in found.timeline.spans]
    assert spans == [
        (0, "forward", 0.0, 1.0),
        (0, "backward", 1.0, 3.0),
        (0, "idle", 3.0, 6.0),
        (0, "sync", 6.0, 6.5),
        (1, "forward", 0.0, 2.0),
        (1, "backward", 2.0, 6.0),
        (1, "sync", 6.0, 6.5),
    ]


def test_a_slow_gpu_updates_slowly_once_both_passes_have_ended():
    shared = replace(layer("conv", 2, forward=1.0, backward=2.0, sync=0.5), update=1.0)
    made = plan_of(shared, replace(layer("fc", 1, forward=1.0), update=0.5), gpus=2)
    found = simulate(made, conditions=Conditions(speeds=(1.0, 0.5)))
    updates = [(x.gpu, x.start, x.end) for x in found.timeline.spans if x.kind == "update"]
    # GPU 1 computes the convolution for 2 and 4 s; GPU 0 updates both layers, as fast as planned.
    assert updates == [(0, 7.5, 9.0), (1, 7.5, 9.5)]
    assert found.iteration_time == 9.5


def test_samples_that_move_between_the_same_gpus_are_waited_for_too():
    made = plan_of(layer("a", 2, forward=1.0), layer("b", 2, forward=1.0, reshard=1.0), gpus=2)
    found = simulate(made, conditions=Conditions(speeds=(1.0, 0.5)))
    fast = [(x.kind, x.start, x.end) for x in found.timeline.spans if x.gpu == 0 and x.kind != "idle"]
    assert fast == [("forward", 0.0, 1.0), ("reshard", 2.0, 2.5), ("forward", 2.5, 3.5), ("reshard", 3.5, 4.0)]
    assert found.iteration_time == pytest.approx(5.0)


def test_the_speed_of_an_unused_gpu_does_not_matter():
    made = plan_of(layer("fc", 1, forward=1.0, backward=2.0), gpus=2)
    found = simulate(made, conditions=Conditions(speeds=(1.0, 0.01)))
    assert found.iteration_time == pytest.approx(3.0)
    assert found.idle_gpu_seconds == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("gpus_per_node", "inside", "between", "slower"),
    [
        (4, 0.5, 1.0, 2.0),
        (4, 1.0, 0.5, 1.0),
        (2, 1.0, 0.25, 4.0),
        (2, 0.5, 1.0, 1.0),
        (2, 0.01, 1.0, 50.0),
        (1, 0.01, 1.0, 1.0),
    ],
    ids=[
        "a node's own link",
        "links between nodes that nothing crosses",
        "links between nodes",
        "a node's own link, still as fast as those between",
        "a node's own link, now the slowest",
        "a node's own link, of nodes of one GPU",
    ],
)
def test_transfers_take_longer_on_slow_links_and_computing_does_not(gpus_per_node, inside, between, slower):
    made = plan_of(
        layer("conv", 4, forward=1.0, backward=1.0, sync=1.0), layer("fc", 1, forward=1.0, reshard=1.0), gpus=4
    )
    links = Link(2e9, 0.0, "by hand"), Link(1e9, 0.0, "by hand")
    found = simulate(
        replace(made, cluster=Cluster(4, "by hand", gpus_per_node, *links)),
        conditions=Conditions(inside_bandwidth=inside, between_bandwidth=between),
    )
    assert found.iteration_time == pytest.approx(3.0 + 2.0 * slower)


@pytest.mark.parametrize(
    ("inside", "between", "expected"), [(1.0, 0.5, 3.0 + 2.0 + 1.0), (0.25, 1.0, 3.0 + 2.0 + 4.0), (0.5, 1.0, 6.0)]
)
def test_an_all_reduce_inside_a_node_is_as_slow_as_its_links_whatever_the_inputs_cross(inside, between, expected):
    # Inputs come from both nodes, gradients are summed in one.
    made = plan_of(
        layer("conv", 4, forward=1.0, backward=1.0), layer("fc", 2, forward=1.0, reshard=1.0, sync=1.0), gpus=4
    )
    links = Link(2e9, 0.0, "by hand"), Link(1e9, 0.0, "by hand")
    found = simulate(
        replace(made, cluster=Cluster(4, "by hand", 2, *links)),
        conditions=Conditions(inside_bandwidth=inside, between_bandwidth=between),
    )
    assert found.iteration_time == pytest.approx(expected)


def test_iterations_of_one_seed_are_the_same_and_of_another_differ():
    made = two_layer_plan()
    conditions = Conditions(jitter=0.1, straggling=0.1, seed=7)
    first, again = (simulate(made, conditions=conditions, iterations=50) for _ in range(2))
    assert first == again
    assert len(set(first.iteration_times)) == 50
    other = simulate(made, conditions=replace(conditions, seed=8), iterations=50)
    assert other.iteration_times != first.iteration_times


def test_the_iteration_shown_is_the_one_of_median_length():
    found = simulate(two_layer_plan(), conditions=Conditions(jitter=0.2), iterations=101)
    assert found.iteration_time == np.median(found.iteration_times) == found.timeline.duration


def test_stragglers_have_the_requested_frequency_and_slowdown():
    drawn = Conditions(straggling=0.25, delay=3.0, seed=1).slowness(4000, 8)
    late = drawn[drawn > 1]
    assert late.size / drawn.size == pytest.approx(0.25, abs=0.02)
    assert late.mean() == pytest.approx(4.0, rel=0.05)
    jitter = np.log(Conditions(jitter=0.2, speeds=(0.5,), seed=1).slowness(4000, 2))
    assert jitter.std(axis=0) == pytest.approx([0.2, 0.2], rel=0.05)
    assert jitter.mean(axis=0) == pytest.approx([math.log(2), 0], abs=0.02)


def test_more_gpus_have_more_stragglers():
    conditions = Conditions(straggling=0.05)
    means = [
        simulate(
            plan_of(layer("conv", gpus, forward=1.0), gpus=gpus), conditions=conditions, iterations=2000
        ).summary.mean
        for gpus in (1, 8, 64)
    ]
    # The largest of n: one exponential delay, with probability 1 - 0.95 ** n at least.
    assert means[0] == pytest.approx(1.05, abs=0.02)
    assert means[0] < means[1] < means[2]


def test_it_is_read_back_from_a_file_with_its_slow_gpus(tmp_path):
    found = simulate(two_layer_plan(), conditions=Conditions(speeds=(1, 0.5), jitter=0.1), iterations=10)
    assert files.load(files.save(found, tmp_path / "slow.json")) == found
    assert "speed of GPU 1 at 0.5, jitter 0.1; seed 0: mean" in str(found)
    assert str(Conditions(speeds=(0.880547,), jitter=0.165469)) == "speed of GPU 0 at 0.881, jitter 0.165; seed 0"
    assert "p99" in str(found) and "against the plan" in str(found)
    assert str(Conditions()) == "as planned"


def test_percentiles_are_said_of_several_iterations_only():
    alike = str(simulate(two_layer_plan(), conditions=Conditions(speeds=(0.5,)), iterations=10))
    assert re.search(r"; speed of GPU 0 at 0\.5: [\d.]+ m?s \(\+[\d.]+ % against the plan\)$", alike)
    drawn = str(simulate(two_layer_plan(), conditions=Conditions(jitter=0.1), iterations=10))
    assert re.search(r"; jitter 0\.1; seed 0: mean [\d.]+ m?s \(.* against the plan\), p99 .* of 10 iterations$", drawn)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"speeds": (1.0, 0.0)}, "speeds must be positive, got 0 "),
        ({"inside_bandwidth": -1.0}, "inside_bandwidth must be positive, got -1 "),
        ({"jitter": -0.1}, "jitter must not be negative, got -0.1"),
        ({"straggling": 1.5}, "straggling is a probability, from 0 to 1, got 1.5"),
        ({"speeds": (1.0, 1e-320)}, "speeds must be from 1e-06 to 1e[+]06, got 9.99989e-321 "),
        ({"between_bandwidth": 1e308}, "between_bandwidth must be from 1e-06 to 1e[+]06, got 1e[+]308 "),
        ({"jitter": 300.0}, "jitter must be at most 10, got 300 "),
        ({"delay": 1e308}, "delay must be at most 1e[+]06, got 1e[+]308 "),
    ],
)
def test_invalid_conditions_are_refused(wrong, message):
    with pytest.raises(InvalidValueError, match=message):
        Conditions(**wrong)


def test_the_times_of_extreme_conditions_are_numbers():
    extreme = Conditions(speeds=(1e-6,), jitter=10.0, straggling=1.0, delay=1e6, inside_bandwidth=1e-6)
    found = simulate(two_layer_plan(), conditions=extreme)
    assert all(0 < time < math.inf for time in found.iteration_times)


def test_a_profile_of_too_much_noise_is_refused():
    with pytest.raises(InvalidValueError, match=r"too noisy to simulate: iterations spread by 1e\+32 %"):
        profiled_conditions(noisy_profile(1e30), 2)


def test_conditions_of_another_cluster_are_refused():
    with pytest.raises(InvalidValueError, match="up to GPU 4, the plan has 4 GPUs, the last of which is 3"):
        simulate(two_layer_plan(), conditions=Conditions(speeds=(1, 1, 1, 1, 0.5)))
    with pytest.raises(InvalidValueError, match="iterations must be at least 1, got 0"):
        simulate(two_layer_plan(), conditions=Conditions(jitter=0.1), iterations=0)

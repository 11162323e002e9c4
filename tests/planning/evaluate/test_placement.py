"""Placement: free widths worked out by hand, changes against the whole model timed again."""

import random
from dataclasses import replace

import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.planning.evaluate.baselines import data_parallel_times
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search.search import search
from tests.planning.evaluate.iteration_events import iteration_with_overlap
from tests.planning.random_problems import SHAPES, random_problem
from tests.planning.search.test_search import Definition
from tests.strategies import make_graph, profile_from_times

COUNTS = (1, 2, 4, 8)


def placed(edges, options, starts, node=8):
    profile = profile_from_times(make_graph(edges), [lambda b: 1e-3 * b] * len(edges))
    costs = price(profile, Network(Cluster(8, gpus_per_node=node)), 16, COUNTS)
    return Placement(costs, options, starts)


# -- by hand ----------------------------------------------------------------------------------------


def test_layer_of_a_chain_may_widen_to_all_gpus():
    assert placed([(), (0,)], (0, 3), (0, 0)).free_widths == (8, 8)


def test_a_tied_parameter_of_branches_in_two_nodes_is_summed_between_nodes():
    """1 s between nodes, 0.1 s in one; branch 2 is on GPU 1 of the first node, or on GPU 2 of the second one."""
    graph = make_graph([(), (0,), (0,), (1, 2)], None, [0, 10**8, 10**8, 0])
    layers = [replace(layer, parameters=("tied",)) if layer.parameter_bytes else layer for layer in graph.layers]
    profile = profile_from_times(replace(graph, layers=tuple(layers)), [lambda b: 1e-3] * 4)
    network = Network(Cluster(4, "by hand", 2, Link(1e9, 0.0, "near"), Link(1e8, 0.0, "far")))
    costs = price(profile, network, 4, (1, 2, 4))
    summed = [Placement(costs, (0,) * 4, (0, 0, gpu, 0)).layer_times[1].all_reduce for gpu in (1, 2)]
    assert summed == pytest.approx([0.1, 1.0])


def test_no_iteration_ends_before_gpu_0_has_computed_and_summed():
    """8 ms a layer on each of two GPUs, and an all-reduce of 100 ms that begins after half of the backward pass."""
    profile = profile_from_times(make_graph([(), (0,)], None, [0, 10**8]), [lambda b: 1e-3 * b] * 2)
    network = Network(Cluster(2, inside=Link(1e9, 0.0, "near")))
    costs = price(profile, network, 16, (1, 2))
    alone, together = (Placement(costs, (option,) * 2, (0, 0)) for option in (0, 1))
    assert alone.least_time == pytest.approx(alone.iteration_time)
    assert together.least_time == pytest.approx(float(costs.forward[:, 1].sum()) + 0.1)
    assert together.iteration_time == pytest.approx(together.least_time + float(costs.backward[1, 1]))


def test_branches_in_sequence_may_widen_to_all_gpus():
    assert placed([(), (0,), (0,), (1, 2)], (0, 1, 1, 0), (0, 0, 0, 0)).free_widths == (8, 8, 8, 8)


def test_a_branch_may_widen_up_to_the_adjacent_branch():
    """Branch 1 on GPUs 0-1 up to GPU 4, where branch 2 starts; that one up to the last GPU; the join all of them."""
    assert placed([(), (0,), (0,), (1, 2)], (0, 1, 0, 0), (0, 0, 4, 0)).free_widths == (8, 4, 4, 8)


def test_free_widths_of_nested_branches_end_with_their_gpu_group():
    """
    0 ─┬─ 1 ─┬─ 2 ─┬─ 4 ─┬─ 6    GPU groups: the branch of 1 to 4 on GPUs 0-3, branch 5 from GPU 4 on.
       │     └─ 3 ─┘     │       Inside: 2 from GPU 0, 3 from GPU 2.
       └─ 5 ─────────────┘
    """
    edges = [(), (0,), (1,), (1,), (2, 3), (0,), (4, 5)]
    widths = placed(edges, (3, 2, 0, 1, 1, 1, 3), (0, 0, 0, 2, 0, 4, 0)).free_widths
    assert widths == (8, 4, 2, 2, 4, 4, 8)


def test_free_widths_of_an_open_join_end_with_the_gpu_group_of_its_branch():
    """Branch 1 with the tail 2, 3 on GPUs 0-3, branch 4 from GPU 4 on; the tail's 3 starts on GPU 1."""
    edges = [(), (0,), (1,), (1,), (0,), (2, 3, 4)]
    assert placed(edges, (0, 2, 0, 0, 0, 0), (0, 0, 0, 1, 4, 0)).free_widths == (8, 4, 1, 3, 4, 8)


def test_free_width_inside_a_node_ends_with_the_node():
    """Nodes of 3: GPUs 0-2, 3-5, 6-7. From GPU 2 on, one GPU lies in its node, from GPU 3 on any number."""
    edges = [(), (0,), (0,), (1, 2)]
    assert placed(edges, (0, 1, 0, 0), (0, 0, 2, 0), node=3).free_widths == (8, 2, 1, 8)
    assert placed(edges, (0, 1, 0, 0), (0, 0, 3, 0), node=3).free_widths == (8, 3, 5, 8)


@pytest.mark.parametrize("model", ["ring", "paper"])
def test_data_parallelism_sums_a_tied_parameter_once(model):
    graph = make_graph([(), (0,), (1,)], parameter_bytes=[2**24, 0, 2**24])
    tied = replace(graph.layers[2], parameters=graph.layers[0].parameters)
    alone = replace(graph.layers[2], parameter_bytes=0)
    times = []
    for last in (tied, alone):
        profile = profile_from_times(replace(graph, layers=(*graph.layers[:2], last)), [lambda b: 1e-3 * b] * 3)
        costs = price(profile, Network(Cluster(4), model), 16, (1, 4))
        times.append(data_parallel_times(profile, costs, memory_model(profile, 16))[-1])
    assert times[0] == times[1]


# -- against the definitions ------------------------------------------------------------------------


def placements(shape, number):
    """A plan, and the same with another GPU count for one layer, if it may widen to that."""
    rng = random.Random(f"{shape} {number}")
    problem = random_problem(rng, 10, 12, most_per_node=4, shape=shape)
    request = problem.profile, problem.cluster, problem.global_batch
    definition = Definition(*request)
    costs = price(problem.profile, Network(problem.cluster), problem.global_batch, tuple(definition.gpu_counts))
    costs = replace(costs, overlap=False)
    found = search(costs, rng.choice([None, 1.5, 4.0]))
    made = Placement(costs, found.choices, found.starts)
    layer = rng.randrange(len(found.choices))
    fitting = [option for option, count in enumerate(costs.gpu_counts) if count <= made.free_widths[layer]]
    return definition, made, layer, made.with_option([layer], rng.choice(fitting))


def places(placement):
    return [(placement.gpu_count(layer), start) for layer, start in enumerate(placement.starts)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_changing_one_layer_gives_the_time_of_the_whole_model_with_that_change(shape):
    changed = 0
    for number in range(60):
        definition, made, layer, other = placements(shape, number)
        before, after = (definition.iteration_time(places(placement)) for placement in (made, other))
        touched = (layer, *made.readers[layer])
        assert made.time_change(other, touched) == pytest.approx(after - before, rel=1e-9, abs=1e-12 * after)
        changed += made != other
    assert changed > 10


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_times_follow_the_definitions(shape):
    for number in range(60):
        definition, made, _, other = placements(shape, number)
        for placement in (made, other):
            times = definition.times(places(placement))
            assert [placement.time(layer) for layer in range(len(times))] == pytest.approx(times, rel=1e-12)
            work = sum(time * count for time, (count, _) in zip(times, places(placement), strict=True))
            assert placement.gpu_seconds == pytest.approx(work, rel=1e-12)
            seconds = definition.iteration_time(places(placement))
            assert placement.iteration_time == pytest.approx(seconds, rel=1e-12)
            assert placement.least_time <= seconds * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_iteration_time_with_overlap_is_that_of_the_events(shape):
    shorter = 0
    for number in range(20):
        definition, made, _, _ = placements(shape, number)
        overlapping = replace(made, costs=replace(made.costs, overlap=True))
        events, _ = iteration_with_overlap(definition, places(overlapping))
        assert overlapping.iteration_time == pytest.approx(events, rel=1e-9)
        assert events / 100 < overlapping.least_time <= events * (1 + 1e-9)
        shorter += overlapping.iteration_time < made.iteration_time * (1 - 1e-9)
    assert shorter


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_widened_layer_shares_no_gpu_with_a_parallel_branch(shape):
    for number in range(60):
        _, made, layer, other = placements(shape, number)
        everything = Placement(made.costs, made.options, made.starts)
        assert everything.free_widths == made.free_widths
        # The GPU groups stay what they were: whatever ran beside the layer still does.
        assert other.free_widths[layer] == made.free_widths[layer]
        assert all(width >= made.gpu_count(index) for index, width in enumerate(made.free_widths))

"""Plans whose all-reduces overlap the backward pass, against every assignment there is."""

import itertools
import json
import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.buckets import DATA_PARALLEL_BUCKETS
from deeppool.costs.communication import Network, default_model
from deeppool.costs.table import price
from deeppool.graph.series_parallel import ParallelBlock, decompose, layers_of, parts_of
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.plan import Plan
from deeppool.planning.request import gpu_counts_to_search
from deeppool.planning.search import flow_shop, hill_climbing, overlap
from deeppool.planning.search.flow_shop import fastest_in_sequence
from deeppool.planning.search.overlap import bounding_plan, search_overlapping
from deeppool.profiling.default_cluster import cluster_for
from deeppool.profiling.shipped import find_profile
from deeppool.profiling.table import Measurement
from deeppool.simulation.plan.simulate import simulate
from tests.planning.evaluate.iteration_events import iteration_with_overlap
from tests.planning.search.test_frontier import factor
from tests.planning.search.test_search import LIMITS, ROUNDING, Definition, counts_of, few_partitions, places_of
from tests.planning.searched import buckets_of, plan
from tests.sampling import examples
from tests.strategies import (
    ALONE_BYTES,
    BUCKETS,
    computing_problems,
    contested_problems,
    make_graph,
    make_profile,
    measured_network,
    problems,
    series_parallel_graphs,
    tangled_graphs,
    tied_problems,
)

ANY_GRAPH = st.one_of(series_parallel_graphs(max_layers=5), tangled_graphs(max_layers=5))
LARGER = st.one_of(series_parallel_graphs(max_layers=20), tangled_graphs(max_layers=10))
SMALL_PROBLEMS = st.one_of(
    problems(ANY_GRAPH, gpus=(1, 2, 3, 4)), contested_problems(ANY_GRAPH), computing_problems(ANY_GRAPH)
)
LARGER_PROBLEMS = st.one_of(problems(LARGER), contested_problems(LARGER, gpus=(2, 4, 8)), computing_problems(LARGER))


def optimum(definition, limit):
    """The least iteration time of all assignments that keep the limit with their all-reduces in full."""
    best = math.inf
    for assignment in definition.assignments(definition.tree, 0, definition.cluster.gpus):
        places = [place for _, place in sorted(assignment)]
        if limit is None or max(definition.amplifications(places)) <= limit * (1 + ROUNDING):
            best = min(best, iteration_with_overlap(definition, places)[0])
    return best


def costs_of(profile, cluster, batch):
    return price(
        profile, Network(cluster, default_model(cluster, "cpu")), batch, gpu_counts_to_search(cluster.gpus, batch)
    )


def is_sequence(definition):
    return not any(isinstance(part, ParallelBlock) and len(part.branches) > 1 for part in parts_of(definition.tree))


def check(problem, limit, which="powers", *, proving=True):
    """Checks that a plan states its assignment's time, keeps its limit and has a valid bound."""
    made = plan(*problem, limit, overlap_sync=True, gpu_counts=which, proving=proving)
    definition = Definition(*problem, which)
    places = places_of(made)
    assert made.overlap_sync
    definition.with_buckets(made.buckets)
    assert made.iteration_time == pytest.approx(iteration_with_overlap(definition, places)[0], rel=1e-9)
    for layer, amplification in zip(made.layers, definition.amplifications(places), strict=True):
        assert layer.amplification == pytest.approx(amplification, rel=1e-12)
        assert limit is None or amplification <= limit * (1 + ROUNDING), layer.name
    definition.with_buckets(buckets_of(problem, which))
    least = optimum(definition, limit)
    assert made.iteration_time <= least * factor(made.optimality) * (1 + ROUNDING)
    # Data parallelism may be faster in buckets that are not searched.
    assert least * (1 - ROUNDING) <= made.iteration_time or made.buckets != definition.buckets
    return made, definition


@examples(150)
@given(SMALL_PROBLEMS, st.sampled_from(LIMITS))
def test_no_assignment_beats_a_plan_by_more_than_its_bound(problem, limit):
    made, definition = check(problem, limit)
    assert not is_sequence(definition) or factor(made.optimality) <= overlap.NEAR


@examples(150)
@given(SMALL_PROBLEMS, st.sampled_from(LIMITS))
def test_the_bound_of_a_plan_without_proof_is_valid(problem, limit):
    check(problem, limit, proving=False)


@examples(150)
@given(SMALL_PROBLEMS, st.sampled_from(LIMITS))
def test_the_bound_of_a_plan_is_valid_over_the_label_limit(problem, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_shop, "MOST_WAYS", (1,))
        check(problem, limit)


@examples(150)
@given(tied_problems(SMALL_PROBLEMS), st.sampled_from(LIMITS))
def test_a_tied_parameter_is_summed_once_over_the_gpus_of_all_its_layers(problem, limit):
    check(problem, limit)


@pytest.mark.slow
@examples(60)
@given(contested_problems(series_parallel_graphs(max_layers=5), gpus=(3, 5, 6)), st.sampled_from(LIMITS), st.booleans())
def test_the_bound_of_a_plan_over_all_gpu_counts_is_valid(problem, limit, some_left_out):
    with few_partitions() if some_left_out else nullcontext():
        check(problem, limit, "all")


def test_more_gpu_counts_than_the_flow_shop_can_follow_make_no_slower_plan(monkeypatch):
    """19 counts of ResNet-50 on 32 GPUs: the ways that were left took 6.5 % longer than the best of 6 counts."""
    monkeypatch.setattr(hill_climbing, "MOST_VAIN", 0)
    profile = find_profile("resnet50-h200")
    times = [
        plan(profile, cluster_for(profile, 32), 128, overlap_sync=True, gpu_counts=which).iteration_time
        for which in ("powers", "all")
    ]
    assert times[1] <= times[0] * overlap.NEAR


def data_parallel(problem):
    """Seconds of data parallelism in its best buckets."""
    definition = Definition(*problem)
    places = [(definition.cluster.gpus, 0)] * len(definition.layers)
    return min(iteration_with_overlap(definition.with_buckets(each), places)[0] for each in DATA_PARALLEL_BUCKETS)


@pytest.mark.slow
@examples(60)
@given(contested_problems(LARGER, gpus=(4, 8)))
def test_data_parallelism_and_one_gpu_are_no_faster_even_with_a_minimal_search(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_shop, "MOST_WAYS", (1,))
        made = plan(*problem, overlap_sync=True)
    assert made.iteration_time <= data_parallel(problem) * (1 + 1e-9)
    assert made.iteration_time <= made.single_gpu_iteration_time * (1 + 1e-12)


@examples(200)
@given(st.one_of(contested_problems(ANY_GRAPH), computing_problems(ANY_GRAPH)), st.sampled_from(LIMITS), BUCKETS)
def test_no_assignment_is_below_a_bound(problem, limit, buckets):
    definition, costs = Definition(*problem).with_buckets(buckets), replace(costs_of(*problem), buckets=buckets)
    _, bound = bounding_plan(costs, definition.tree, limit)
    assert bound <= optimum(definition, limit) * (1 + ROUNDING)


def test_a_branch_that_cannot_hide_its_all_reduce_stays_on_one_gpu():
    """On two GPUs its 9 ms become 1, but nothing is left to compute beside its 8 ms all-reduce: 12 ms, not 11."""
    graph = make_graph([(), (0,), (0,), (0, 1, 2)], parameter_bytes=[0, 0, ALONE_BYTES, 0])
    backward = [(0.0, 0.0), (0.0, 0.0), (0.0, 0.008), (0.0, 0.0)]
    measurements = [
        Measurement(layer.signature, (0.001, 0.001), seconds, (0.0, 0.0))
        for layer, seconds in zip(graph.layers, backward, strict=True)
    ]
    link = Link(ALONE_BYTES / 0.008, 0.0, "by hand")
    network = Network(Cluster(2, "by hand", 2, link, link))
    costs = price(make_profile(graph, measurements, (1, 2)), network, 2, (1, 2))
    assert search_overlapping(costs, None).iteration_time == pytest.approx(0.011)


def test_branches_leave_the_gpu_that_updates_most_together():
    """Updates take 1, 1 and 5 s: with both branches on GPU 1 an iteration takes 5 s and 6 ms, with one of them 6 s."""
    graph = make_graph([(), (), (0, 1)], parameter_bytes=[1, 1, 5])
    measurements = [Measurement(layer.signature, (0.001,) * 2, (0.001,) * 2, (0.0,) * 2) for layer in graph.layers]
    link = Link(1e15, 0.0, "by hand")
    profile = make_profile(graph, measurements, (1, 2), update_per_byte=1.0)
    made, _ = check((profile, Cluster(2, "by hand", 2, link, link), 2), None)
    assert places_of(made) == [(1, 1), (1, 1), (1, 0)]


@examples(60)
@given(LARGER_PROBLEMS, st.sampled_from(LIMITS))
def test_overlap_never_slows_the_best_plan(problem, limit):
    without, overlapping = plan(*problem, limit), plan(*problem, limit, overlap_sync=True)
    updates = sum(layer.update for layer in overlapping.layers)
    # A plan within NEAR of its bound is not improved.
    assert overlapping.iteration_time <= (without.iteration_time + updates) * overlap.NEAR
    assert overlapping.iteration_time <= overlapping.single_gpu_iteration_time * (1 + 1e-12)
    if limit is None:
        assert overlapping.iteration_time <= data_parallel(problem) * (1 + 1e-9)


@examples(60)
@given(LARGER_PROBLEMS, st.sampled_from(LIMITS))
def test_replay_is_the_plan(problem, limit):
    made = plan(*problem, limit, overlap_sync=True)
    result = simulate(made)
    assert result.iteration_time == pytest.approx(made.iteration_time, rel=1e-12)
    assert result.timeline.duration == pytest.approx(made.iteration_time, rel=1e-12)
    if made.sync_computing:
        # While a core only waits for an all-reduce, a background can use it.
        assert result.gpu_seconds <= made.gpu_seconds * (1 + 1e-9)
    else:
        assert result.gpu_seconds == pytest.approx(made.gpu_seconds, rel=1e-9)
    assert result.gpu_seconds + result.idle_gpu_seconds == pytest.approx(made.gpus * made.iteration_time, rel=1e-9)
    # All GPUs of a layer wait for the one that an all-reduce slows down, whether or not it is of that all-reduce.
    in_full = sum((layer.time + layer.update) * layer.gpu_count for layer in made.layers)
    slowed = sum(layer.sync * made.sync_computing * made.gpus for layer in made.layers)
    assert made.gpu_seconds <= (in_full + slowed) * (1 + 1e-9)
    assert made.amplification == pytest.approx(made.gpu_seconds / made.single_gpu_iteration_time)
    for gpu in range(made.gpus):
        spans = sorted((span for span in result.timeline.spans if span.gpu == gpu), key=lambda span: span.start)
        assert all(before.end == pytest.approx(after.start, abs=1e-15) for before, after in itertools.pairwise(spans))


@examples(60)
@given(SMALL_PROBLEMS)
def test_gpus_are_held_while_they_compute_move_samples_or_all_reduce(problem):
    """Counted on a grid of all moments at which anything changes, GPU by GPU."""
    made = plan(*problem, overlap_sync=True)
    _, all_reduces = iteration_with_overlap(Definition(*problem).with_buckets(made.buckets), places_of(made))
    spans = [span for span in simulate(made).timeline.spans if span.kind not in ("idle", "sync")]
    total = 0.0
    for gpu in range(made.gpus):
        stretches = [(span.start, span.end) for span in spans if span.gpu == gpu]
        stretches += [all_reduces[i] for i, layer in enumerate(made.layers) if gpu in layer.gpus and i in all_reduces]
        moments = sorted({moment for stretch in stretches for moment in stretch})
        for start, end in itertools.pairwise(moments):
            middle = (start + end) / 2
            total += (end - start) * any(a <= middle <= b for a, b in stretches)
    assert made.gpu_seconds == pytest.approx(total, rel=1e-9)


@examples(40)
@given(SMALL_PROBLEMS, st.sampled_from(LIMITS))
def test_every_alternative_is_timed_as_the_whole_iteration_would_be(problem, limit):
    made = plan(*problem, limit, overlap_sync=True)
    definition, places = Definition(*problem).with_buckets(made.buckets), places_of(made)
    now, _ = iteration_with_overlap(definition, places)
    for index, layer in enumerate(made.layers):
        for option in layer.alternatives:
            changed = [*places[:index], (option.gpu_count, places[index][1]), *places[index + 1 :]]
            then, _ = iteration_with_overlap(definition, changed)
            assert option.iteration_time_change == pytest.approx(then - now, rel=1e-9, abs=1e-12 * (now + then))


def test_a_tied_parameter_may_be_summed_apart_from_the_others_of_its_layer():
    """Layer 0 on 2 GPUs has 15 MiB of its own, and 15 that layer 1 uses on 4: two sums of 1 ms; one of 30 takes 1 s."""
    size = 15 * 2**20
    graph = make_graph([(), (0,)], parameter_bytes=[2 * size, size])
    names = (("tied", "own"), ("tied",))
    layers = tuple(
        replace(layer, parameters=own, parameter_sizes=(size,) * len(own))
        for layer, own in zip(graph.layers, names, strict=True)
    )
    times = [(1.0, 0.01, 0.5), (0.01, 1.0, 1.0)]
    measurements = [
        Measurement(layer.signature, own, (0.0,) * 3, (0.0,) * 3) for layer, own in zip(layers, times, strict=True)
    ]
    network = measured_network({2: (1e-3, 1e-3, 1.0), 4: (1e-3, 1e-3, 1.0)}, (64, size, 2 * size))
    free = Link(1e18, 0.0, "by hand")
    cluster = Cluster(4, "by hand", 4, free, free, measured=network)
    made = plan(make_profile(replace(graph, layers=layers), measurements, (1, 2, 4)), cluster, 4, overlap_sync=True)
    assert (counts_of(made), made.iteration_time) == ((2, 4), pytest.approx(0.022))


# -- the flow shop ----------------------------------------------------------------------------------


@examples(60)
@given(
    st.one_of(
        problems(ANY_GRAPH, gpus=(2, 4)),
        contested_problems(tangled_graphs(max_layers=5)),
        computing_problems(tangled_graphs(max_layers=5)),
    ),
    st.sampled_from(LIMITS),
    BUCKETS,
)
def test_labels_find_exactly_the_best_sequence(problem, limit, buckets):
    definition, costs = Definition(*problem).with_buckets(buckets), replace(costs_of(*problem), buckets=buckets)
    order = layers_of(definition.tree)
    times = {}
    for options in itertools.product(range(len(costs.gpu_counts)), repeat=len(order)):
        places = [(costs.gpu_counts[option], 0) for option in options]
        if limit is None or max(definition.amplifications(places)) <= limit * (1 + ROUNDING):
            times[options] = iteration_with_overlap(definition, places)[0]
    best = min(times.values())
    for at_most in (1.000001 * best, 2 * best):
        options, seconds = fastest_in_sequence(costs, order, limit, at_most)
        assert times[options] == pytest.approx(best, rel=1e-9)
        assert seconds == pytest.approx(best, rel=1e-9)
    at_most = best * (1 - 1e-9)
    assert fastest_in_sequence(costs, order, limit, at_most) == (None, at_most)


@examples(60)
@given(
    st.one_of(SMALL_PROBLEMS, tied_problems(SMALL_PROBLEMS)),
    st.sampled_from(LIMITS),
    st.sampled_from([(1,), (3,), (1, 5_000)]),
    BUCKETS,
)
def test_no_assignment_is_below_what_the_flow_shop_states(problem, limit, most, buckets):
    definition, costs = Definition(*problem).with_buckets(buckets), replace(costs_of(*problem), buckets=buckets)
    known = uniform_plan(costs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_shop, "MOST_WAYS", most)
        patch.setattr(flow_shop, "READ_WAYS", 4)
        best, least = overlap._by_flow_shop(costs, definition.tree, limit, known, 0.0)
    assert best.iteration_time <= known.iteration_time
    assert least <= optimum(definition, limit) * (1 + ROUNDING)


def test_what_the_flow_shop_states_counts_branches_side_by_side():
    """Layers take 2 s on one GPU as on two: 8 s in sequence, and 6 s if both branches have a GPU each.

    Bounds of 6.5 and of 7.95 are better ones; 7.95 is near enough to the plan of 8 s not to be improved.
    """
    graph = make_graph([(), (0,), (0,), (1, 2)])
    measurements = [Measurement(layer.signature, (1.0, 1.0), (1.0, 1.0), (0.0, 0.0)) for layer in graph.layers]
    link = Link(1e15, 0.0, "by hand")
    costs = costs_of(make_profile(graph, measurements, (1, 2)), Cluster(2, "by hand", 2, link, link), 2)
    tree, known = decompose(((), (0,), (0,), (1, 2))), uniform_plan(costs)
    best, least = overlap._by_flow_shop(costs, tree, None, known, 0.0)
    assert (best.iteration_time, least) == (pytest.approx(8.0), pytest.approx(6.0))
    assert overlap._by_flow_shop(costs, tree, None, known, 6.5)[1] == 6.5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "BlockSolver", None)
        assert overlap._by_flow_shop(costs, tree, None, known, 7.95) == (best, 7.95)


def uniform_plan(costs):
    """All layers on one GPU, which any limit permits."""
    nothing = (0,) * len(costs.graph.layers)
    return Placement(costs, nothing, nothing)


# -- by hand ----------------------------------------------------------------------------------------


def two_layers(first_bytes, second_bytes):
    """Two layers of 1 s forward and 2 s backward for 4 samples on one GPU; they split freely and move nothing.

    A ring over two GPUs sums 10 bytes in a second.
    """
    graph = make_graph([(), (0,)], None, [first_bytes, second_bytes])
    per_sample = [Measurement(x.signature, (0.25, 0.5, 1.0), (0.5, 1.0, 2.0), (0.0,) * 3) for x in graph.layers]
    link = Link(10.0, 0.0, "made by hand")
    return make_profile(graph, per_sample, (1, 2, 4)), Cluster(2, "made by hand", 2, link, link), 4


def test_a_hidden_all_reduce_makes_a_split_faster():
    """All-reducing the second layer takes 1.6 s. Splitting it saves 1.5 s, so that costs more than it saves.

    But the first layer's backward, 1 s on two GPUs, hides 1 s of it.
    """
    without, overlapping = plan(*two_layers(0, 16)), plan(*two_layers(0, 16), overlap_sync=True)
    assert (counts_of(without), without.iteration_time) == ((2, 1), 4.5)
    assert (counts_of(overlapping), overlapping.iteration_time) == ((2, 2), pytest.approx(3.6))
    assert overlapping.data_parallel_iteration_time == pytest.approx(3.6)
    assert without.data_parallel_iteration_time == pytest.approx(4.6)
    assert overlapping.gpu_seconds == pytest.approx(7.2)
    # What hides still counts in full for the limit: 2 GPUs x (1.5 + 1.6) s against 3 s.
    assert overlapping.layers[1].amplification == pytest.approx(6.2 / 3)
    assert counts_of(plan(*two_layers(0, 16), 2.0, overlap_sync=True)) == (2, 1)


def test_an_all_reduce_with_nothing_left_to_hide_it_decides_against_a_split():
    """The first layer's backward is the last one: its 2 s of all-reduce cost more than the 1.5 s that two GPUs save."""
    made = plan(*two_layers(20, 0), overlap_sync=True)
    assert (counts_of(made), made.iteration_time, made.optimality) == ((1, 2), 4.5, "exact")
    assert made.data_parallel_iteration_time == 5.0


def test_an_all_reduce_longer_than_what_is_left_is_exposed_by_the_rest():
    """All on two GPUs: 2 s of forward and of the second backward, then 1 s of backward beside 1.2 s of all-reduce."""
    made = plan(*two_layers(0, 12), overlap_sync=True)
    assert made.iteration_time == pytest.approx(3.2)
    spans = [span for span in simulate(made).timeline.spans if span.kind == "sync"]
    assert [(span.gpu, span.start, span.end) for span in spans] == [
        (gpu, pytest.approx(3.0), pytest.approx(3.2)) for gpu in (0, 1)
    ]


def shaped(predecessors, input_bytes, parameter_bytes, forward, update=0.0):
    """Layers that take ``forward[g]`` on g GPUs, and 100 s on other counts of 1, 2 and 4; backward takes no time.

    A GPU sends 20 bytes in a second, which is also what two of them need to all-reduce 20 bytes.
    """
    graph = make_graph(predecessors, input_bytes, parameter_bytes)
    times = [tuple(float(own.get(4 // batch, 100.0)) for batch in (1, 2, 4)) for own in forward]
    measurements = [
        Measurement(layer.signature, own, (0.0,) * 3, (0.0,) * 3)
        for layer, own in zip(graph.layers, times, strict=True)
    ]
    link = Link(20.0, 0.0, "made by hand")
    return make_profile(graph, measurements, (1, 2, 4), update), Cluster(4, "made by hand", 4, link, link), 4


def bound_of(problem):
    return bounding_plan(costs_of(*problem), Definition(*problem).tree, None)[1]


def test_a_transfer_hides_an_all_reduce_in_backward_only():
    """1 s of transfer forward, and 1 s back beside the last layer's 1 s of all-reduce: the bound is those 2 s."""
    # All 4 samples are on one GPU, which sends two of them away, 10 bytes each.
    problem = shaped([(), (0,)], [(), (10,)], [0, 20], [{1: 0.001}, {2: 0.001}])
    assert check(problem, None)[0].iteration_time == pytest.approx(2.002)
    assert bound_of(problem) == pytest.approx(2.002)


def test_a_transfer_into_one_branch_is_compared_with_the_other_branch_pass_by_pass():
    """The same with 1 s of a branch without transfers beside the transfer forward, and nothing beside it backward."""
    problem = shaped(
        [(), (0,), (0,), (1, 2)],
        [(), (10,), (0,), (0, 0)],
        [0, 0, 0, 20],
        [{1: 0.001}, {2: 0.001}, {1: 1, 2: 1}, {2: 0.001}],
    )
    made, _ = check(problem, None)
    assert bound_of(problem) <= made.iteration_time


@pytest.mark.parametrize("heavy", [1, 2])
def test_branches_all_reduce_concurrently_with_the_layer_before_them(heavy):
    """A fork and one of its branches all-reduce 10 s each, on GPUs that they do not share if the partition is right.

    The fork takes 10 s on GPUs 0 and 1, the lanes 10 s, and then both all-reduces run: 30 s. With the heavy branch
    on the fork's GPUs it would be 40 s, and to count both as one after another would be no bound.
    """
    sizes = [200, 0, 0, 0]
    sizes[heavy] = 200
    times = [{2: 10, 4: 10}, {2: 10, 4: 10}, {2: 10, 4: 10}, {1: 0.001}]
    problem = shaped([(), (0,), (0,), (1, 2)], [(), (0,), (0,), (0, 0)], sizes, times)
    made, definition = check(problem, None)
    assert optimum(definition, None) == pytest.approx(30.001)
    assert bound_of(problem) <= 30.001 * (1 + ROUNDING)
    assert made.iteration_time in (pytest.approx(30.001), pytest.approx(40.001))


def test_branches_leave_a_gpu_idle_that_updates_another_layer():
    """Four layers take 1 s each, the first two side by side; three also take 2 s to update; GPU 0 runs the others.

    A branch on GPU 0 leaves it two layers to update: 3 + 4 s. With the branches on two others all updates run at once.
    """
    problem = shaped([(), (), (0, 1), (2,)], [(), (), (0, 0), (0,)], [20, 20, 0, 20], [{1: 1}] * 4, update=0.1)
    made, _ = check(problem, None)
    assert made.iteration_time == pytest.approx(5)
    assert made.optimality == "exact"
    assert 0 not in {first for _, first in places_of(made)[:2]}


# -- the record -------------------------------------------------------------------------------------


def test_a_plan_records_that_all_reduces_overlap_and_is_read_back_as_written(tmp_path):
    made = plan(*two_layers(0, 10), overlap_sync=True)
    assert "overlapped" not in str(made)
    assert serialization.read(serialization.write(made, tmp_path / "plan.json"), Plan) == made
    assert "all-reduces not overlapped" in str(plan(*two_layers(0, 10)))


def test_plan_of_a_file_without_the_field_has_no_overlap(tmp_path):
    document = serialization.to_json(plan(*two_layers(0, 10)))
    del document["overlap_sync"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    assert serialization.read(path, Plan).overlap_sync is False


def test_a_core_that_waits_for_a_longer_branch_computes_all_reduces_for_nothing():
    """0 forks into 1 on GPU 0 and 1, 1 s backward, and 2 on GPU 2, 8 s; 3 joins on GPU 0 and 1, 1 s; all forward 1 s.

    forward until 3; backward 3: 3–4, 1: 4–6, beside the all-reduce of 3, 4–8, half of which its core computes, 2: 4–12,
    0: 12–13.
    """
    times = [(1, 1, 1), (1, 1, 1), (8, 8, 8), (1, 1, 50)]
    measurements = [
        Measurement(f"signature{i}", (1.0,) * 3, tuple(map(float, x)), (0.0,) * 3) for i, x in enumerate(times)
    ]
    graph = make_graph([(), (0,), (0,), (1, 2)], parameter_bytes=[0, 0, 0, 2**28])
    network = measured_network({2: (4.0, 4.0, 4.0), 4: (100.0, 100.0, 100.0)})
    groups = tuple(replace(x, curve=replace(x.curve, computing=(0.5,) * 3)) for x in network.all_reduce)
    free = Link(1e15, 0.0, "made by hand")
    cluster = Cluster(4, "made by hand", 4, free, free, measured=replace(network, all_reduce=groups))
    problem = make_profile(graph, measurements, (1, 2, 4)), cluster, 4
    made, definition = check(problem, None)
    assert made.iteration_time == pytest.approx(13)
    _, bound = bounding_plan(costs_of(*problem), definition.tree, None)
    assert bound <= made.iteration_time * (1 + ROUNDING)

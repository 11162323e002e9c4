"""The plan as a record: what it holds, what it is compared with, why each layer got its GPUs."""

import json
import math
import pickle
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeppool as dp
from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import Network, NetworkModel
from deeppool.errors import DocumentError, InvalidValueError, MissingProfileError, PlanError
from deeppool.graph.series_parallel import ParallelBlock, layers_of
from deeppool.planning import assembly, planner
from deeppool.planning.evaluate.alternatives import alternative_costs
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.plan import Plan
from deeppool.planning.report.explain import reason
from deeppool.planning.request import gpu_counts_to_search
from deeppool.records import files
from deeppool.units import format_seconds
from tests.planning.search.test_search import LIMITS, ROUNDING, Definition, join_under_its_limit, places_of
from tests.planning.searched import plan
from tests.sampling import examples
from tests.strategies import (
    make_graph,
    measured_network,
    measured_networks,
    problems,
    profile_from_times,
    series_parallel_graphs,
    tangled_graphs,
)

CONTRACT = {
    "gpus",
    "global_batch",
    "iteration_time",
    "data_parallel_iteration_time",
    "single_gpu_iteration_time",
    "gpu_seconds",
    "amplification",
    "amplification_limit",
    "limit_scope",
    "exempt_layers",
    "optimality",
    "search_time",
    "layers",
}
LAYER_CONTRACT = {"name", "gpu_count", "gpus", "time", "amplification"}


def small_profile(batch_sizes=(1, 2, 4, 8, 16)):
    """A convolution that splits well, then a classifier with many parameters that does not."""
    graph = make_graph([(), (0,)], [(), (4096,)], [2**10, 2**26])
    return profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 1e-4 + 1e-5 * b], batch_sizes)


def small_plan(limit=2.0):
    return plan(small_profile(), Cluster(4), 16, limit)


# -- the record -------------------------------------------------------------------------------------


def test_json_of_a_plan_holds_the_fields_of_the_contract():
    document = serialization.to_json(small_plan())
    assert document["format"] == "deeppool/plan"
    assert document["version"] == 1
    assert document.keys() >= CONTRACT
    assert all(layer.keys() >= LAYER_CONTRACT for layer in document["layers"])
    assert (document["gpus"], document["global_batch"], document["limit_scope"]) == (4, 16, "layer")
    assert document["amplification_limit"] == 2.0
    assert [layer["name"] for layer in document["layers"]] == ["layer0", "layer1"]
    assert [layer["gpus"] for layer in document["layers"]] == [[0, 1, 2, 3], [0]]
    assert "origin" not in document


@examples(60)
@given(
    problems(st.one_of(series_parallel_graphs(max_layers=12), tangled_graphs(max_layers=8))), st.sampled_from(LIMITS)
)
def test_totals_of_a_plan_are_those_of_its_layers(problem, limit):
    made = plan(*problem, limit)
    definition = Definition(*problem)
    alone = sum(definition.compute(index, 1) for index in range(len(made.layers)))
    assert made.iteration_time == pytest.approx(definition.iteration_time(places_of(made)), rel=1e-12)
    assert made.gpu_seconds == pytest.approx(sum(layer.time * layer.gpu_count for layer in made.layers), rel=1e-12)
    assert made.single_gpu_iteration_time == pytest.approx(alone, rel=1e-12)
    assert made.amplification == pytest.approx(made.gpu_seconds / alone, rel=1e-12)
    assert made.speedup == pytest.approx(alone / made.iteration_time, rel=1e-12)
    for layer in made.layers:
        assert layer.time == pytest.approx(layer.reshard + layer.forward + layer.backward + layer.sync, rel=1e-12)
    # One GPU is a choice, so no layer needs an exemption and no plan is slower than one GPU.
    assert made.exempt_layers == ()
    assert made.iteration_time <= alone * (1 + 1e-12)


@examples(60)
@given(problems())
def test_data_parallel_baseline_puts_every_layer_on_all_gpus(problem):
    profile, cluster, batch = problem
    gpus, shard = cluster.gpus, math.ceil(batch / cluster.gpus)
    links = [cluster.inside] * (cluster.gpus_per_node > 1 or gpus == 1)
    links += [cluster.between] * (gpus > cluster.gpus_per_node)
    latency, bandwidth = max(link.latency for link in links), min(link.bandwidth for link in links)
    expected = 0.0
    for index, layer in enumerate(profile.graph.layers):
        expected += profile.time(index, shard).total
        if gpus > 1 and layer.parameter_bytes:
            expected += 2 * (gpus - 1) * latency + 2 * (gpus - 1) / gpus * layer.parameter_bytes / bandwidth
    made = plan(*problem)
    assert made.data_parallel_iteration_time == pytest.approx(expected, rel=1e-12)
    # Data parallelism is one of the plans, so the best one is no slower.
    assert made.iteration_time <= expected * (1 + 1e-12)


@pytest.mark.parametrize(
    ("profile", "cluster"), [("vgg16-cpu", "loopback"), ("vgg16-h200", "dgx-h200")], ids=["cores", "GPUs"]
)
@pytest.mark.parametrize("call", [dp.plan, dp.frontier])
def test_a_number_of_gpus_is_that_of_the_profiles_device(call, profile, cluster):
    made = call(dp.find_profile(profile), 4, 16)
    assert made.cluster == dp.find_cluster(cluster, 4)
    assert made == replace(call(dp.find_profile(profile), made.cluster, 16), search_time=made.search_time)


@pytest.mark.parametrize("goal", ["fastest", "ddp_speed"])
def test_plans_are_compared_with_data_parallelism_where_it_is_fastest(goal):
    """Between nodes the gradients of VGG-16 take longer than what twice as many GPUs gain."""
    profile = dp.find_profile("vgg16-h200")
    on_all, on_one_node = (data_parallel_plan(profile, gpus, 48).iteration_time for gpus in (16, 8))
    made = dp.plan(profile, 16, 48, goal=goal)
    assert on_one_node < on_all
    fastest = made.comparison.fastest
    assert fastest.gpus == 8
    assert fastest.seconds == pytest.approx(on_one_node)
    assert made.iteration_time <= on_one_node * (1 + 1e-9)
    assert f"({fastest.seconds / made.iteration_time:.2f}x DDP, which takes 5.92 ms on 8 GPUs, where it is" in str(made)


def test_layers_timed_beyond_the_profile_are_listed():
    # One GPU takes all 16 samples, which is more than the profile has: amplification leans on a guess.
    assert plan(small_profile((1, 2, 4, 8)), 4, 16).extrapolated_layers == ("layer0", "layer1")
    assert plan(small_profile(), 4, 16).extrapolated_layers == ()


def test_the_papers_network_model_costs_a_plan_by_its_own_formula():
    graph = make_graph([(), (0,)], [(), (1000,)], [0, 3000])
    profile = profile_from_times(graph, [lambda b: 1.0 * b, lambda b: 10.0])
    link = Link(1e4, 0.5, "made by hand")
    made = plan(profile, Cluster(4, "made by hand", 4, link, link), 16, 1.9, network_model="paper")
    assert [layer.gpu_count for layer in made.layers] == [4, 1]
    # There and back, the larger of the two per-GPU payloads: all 16 samples on one GPU.
    assert made.layers[1].reshard == pytest.approx(2 * (0.5 + 16 * 1000 / 1e4))
    # All on four GPUs: the gradients as one transfer.
    assert made.data_parallel_iteration_time == pytest.approx(4 + 10 + 0.5 + 3000 / 1e4)
    assert made.network_model == "paper"


def test_plan_prints_itself_in_a_line():
    text = str(small_plan())
    assert "\n" not in text
    assert text.startswith("drawn, batch 16 on 4 GPUs (dgx-a100), limit 2: ")
    assert text.endswith("exact; layer times estimated for drawn")
    assert str(replace(small_plan(), provenance="measured")).endswith("exact")
    assert "no limit" in str(small_plan(None))


# -- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.8, 0.0, -1.0, float("nan")])
def test_limit_below_one_is_rejected(limit):
    with pytest.raises(InvalidValueError, match=f"amplification_limit must be at least 1.0, got {limit:g}"):
        small_plan(limit)


def test_an_infinite_limit_is_rejected():
    with pytest.raises(InvalidValueError, match="amplification_limit must be finite, got inf"):
        small_plan(float("inf"))


def test_layer_that_takes_no_time_is_rejected():
    # An estimate may round a layer to nothing, and an amplification relative to nothing is no number.
    with pytest.raises(InvalidValueError, match="no layer takes no time at all"):
        profile_from_times(make_graph([()]), [lambda b: 0.0])


def test_more_gpus_than_samples_are_rejected():
    with pytest.raises(
        PlanError, match=r"8 GPUs cannot share a global batch of 4: .*\(at most 4 GPUs, or a larger batch\)"
    ):
        plan(small_profile(), 8, 4)
    with pytest.raises(PlanError, match=r"\(at most 1 GPU, or a larger batch\)"):
        plan(small_profile(), 8, 1)


def test_a_plan_and_a_frontier_on_one_gpu_are_in_the_singular():
    assert " on 1 GPU (" in str(plan(small_profile(), 1, 4))
    assert " on 1 GPU (" in str(planner.frontier(small_profile(), 1, 4))


def test_batch_smaller_than_any_measured_is_rejected():
    with pytest.raises(MissingProfileError, match=r"'layer0' at per-GPU batch 2: .* has 4, 8, 16 .*or use fewer GPUs"):
        plan(small_profile((4, 8, 16)), 8, 16)


@pytest.mark.parametrize("batch", [0, -3])
def test_batch_without_samples_is_rejected(batch):
    with pytest.raises(InvalidValueError, match=f"global_batch must be at least 1, got {batch}"):
        plan(small_profile(), 1, batch)


@pytest.mark.parametrize("batch", [16.0, 16.5])
def test_a_batch_that_is_no_whole_number_is_rejected(batch):
    with pytest.raises(InvalidValueError, match=f"global_batch must be a whole number, got {batch!r}"):
        plan(small_profile(), 2, batch)


def test_gpus_and_samples_may_be_numbers_of_numpy(tmp_path):
    found = plan(small_profile(), np.int64(2), np.int64(16), np.float32(2))
    assert replace(found, search_time=0.0) == replace(plan(small_profile(), 2, 16, 2.0), search_time=0.0)
    assert files.load(files.save(found, tmp_path / "plan.json")) == found


def test_cluster_without_gpus_is_rejected():
    with pytest.raises(InvalidValueError, match="gpus must be at least 1, got 0"):
        plan(small_profile(), 0, 16)


# -- explain ----------------------------------------------------------------------------------------


def free_width(definition, places, index):
    """GPUs from the layer's first one to the next one on which a branch beside it starts, or to its node's end."""
    start, end, node = places[index][1], definition.cluster.gpus, definition.cluster.gpus_per_node

    def search(series):
        nonlocal end
        for block in (*series.blocks, series.tail):
            if not isinstance(block, ParallelBlock):
                continue
            firsts = [places[branch.layers[0]][1] for branch in block.branches]
            for branch, first in zip(block.branches, firsts, strict=True):
                if index in layers_of(branch):
                    end = min([end, *(other for other in firsts if other > first)])
                    search(branch)

    search(definition.tree)
    return end - start if start % node == 0 else min(end, (start // node + 1) * node) - start


@examples(60)
@given(problems(st.one_of(series_parallel_graphs(max_layers=6), tangled_graphs(max_layers=6))), st.sampled_from(LIMITS))
def test_every_alternative_costs_what_the_whole_plan_would(problem, limit):
    made, definition = plan(*problem, limit), Definition(*problem)
    places = places_of(made)
    now = definition.iteration_time(places)
    for index, layer in enumerate(made.layers):
        count, start = places[index]
        room = free_width(definition, places, index)
        assert [option.gpu_count for option in layer.alternatives] == [
            g for g in definition.gpu_counts if g != count and g <= room
        ]
        for option in layer.alternatives:
            changed = [*places[:index], (option.gpu_count, start), *places[index + 1 :]]
            amplifications = definition.amplifications(changed)
            broken = [
                i for i, value in enumerate(amplifications) if limit is not None and value > limit * (1 + ROUNDING)
            ]
            then = definition.iteration_time(changed)
            assert option.iteration_time_change == pytest.approx(then - now, rel=1e-9, abs=1e-12 * (now + then))
            assert option.amplification == pytest.approx(amplifications[index], rel=1e-9)
            assert list(option.over_limit) == sorted(
                (made.layers[i].name for i in broken), key=lambda n: int(n.removeprefix("layer"))
            )


def test_alternatives_are_computed_once_where_they_are_read(monkeypatch, tmp_path):
    computed = []

    def recorded(placement, index, *limits):
        computed.append(index)
        return alternative_costs(placement, index, *limits)

    monkeypatch.setattr(assembly, "alternative_costs", recorded)
    made, other = small_plan(), small_plan()
    assert computed == []
    assert made.layers[1].alternatives is made.layers[1].alternatives
    assert len(made.layers[1].alternatives) == 2
    assert computed == [1]
    path = serialization.write(made, tmp_path / "plan.json")
    assert computed == [1, 0]
    assert serialization.read(path, Plan) == made
    assert computed == [1, 0]
    # What is sent to another process has the costs, not what they are computed from.
    assert pickle.loads(pickle.dumps(other.layers)) == made.layers
    assert computed == [1, 0, 0, 1]


def test_explain_has_a_line_for_each_layer_with_the_cost_of_the_next_counts():
    made = small_plan()
    text = made.explain()
    for layer in made.layers:
        (line,) = [line for line in text.splitlines() if line.strip().startswith(layer.name)]
        adjacent = [o for o in layer.alternatives if o.gpu_count in (layer.gpu_count // 2, layer.gpu_count * 2)]
        assert adjacent
        for option in adjacent:
            assert f"{option.gpu_count}: {format_seconds(option.iteration_time_change)} slower" in line


def test_explain_names_the_layer_whose_limit_rules_out_a_faster_choice():
    graph = make_graph([(), (0,)], [(), (4096,)], [0, 2**26])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 1e-4 + 1e-5 * b])
    made = plan(profile, Cluster(4), 16, 1.0)
    splits_for_free, reader = made.layers
    # Under limit 1 the second layer can pay no transfer, which keeps the first one beside it on one GPU.
    assert (splits_for_free.gpu_count, reader.gpu_count) == (1, 1)
    assert "ms faster, but over the limit (layer1)" in reason(splits_for_free, (1, 2, 4), made.why_not_faster)
    assert "over the limit (itself)" in reason(reader, (1, 2, 4), made.why_not_faster)


def test_explain_states_the_gpus_of_a_branch_and_why_it_cannot_have_more():
    made = plan(*join_under_its_limit(), 1.6)
    line = next(line for line in made.explain().splitlines() if line.strip().startswith("layer1"))
    assert "2 (2–3)" in line
    assert "4: no room from GPU 2 on" in line


def test_explain_states_why_a_branch_on_the_last_gpu_cannot_have_more():
    """Two branches of 1 s that more GPUs do not speed up: of the one on GPU 1 there is no other count to price."""
    graph = make_graph([(), (0,), (0,), (1, 2)])
    profile = profile_from_times(graph, [lambda b: 1e-3, lambda b: 1.0, lambda b: 1.0, lambda b: 1e-3])
    made = plan(profile, Cluster(2), 2)
    last = next(layer for layer in made.layers if layer.gpus == (1,))
    assert last.alternatives == ()
    line = next(line for line in made.explain().splitlines() if line.strip().startswith(last.name))
    assert line.endswith("2: no room from GPU 1 on")
    replanned = replace(made, layers=tuple(replace(layer, alternatives=()) for layer in made.layers))
    assert "no room" not in replanned.explain()


@examples(100)
@given(problems(tangled_graphs(max_layers=6)), st.sampled_from(LIMITS))
def test_explain_does_not_call_a_real_gain_a_rounding_difference(problem, limit):
    # A tangle shares one GPU count, so another one can truly be better for a single layer of it.
    made = plan(*problem, limit)
    for layer in made.layers:
        gains = [-option.iteration_time_change for option in layer.alternatives if not option.over_limit]
        if "within rounding" in reason(layer, made.gpu_counts, made.why_not_faster):
            assert max(gains) <= 1e-9 * made.iteration_time


# -- as a file --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 2.0])
def test_plan_read_back_is_the_plan_written(tmp_path, limit):
    made = small_plan(limit)
    path = serialization.write(made, tmp_path / "plan.json")
    assert serialization.read(path, Plan) == made


def test_plan_whose_gpus_do_not_fit_names_the_layer(tmp_path):
    document = serialization.to_json(small_plan())
    document["layers"][1]["gpus"] = [7]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    with pytest.raises((DocumentError, InvalidValueError), match="layer 'layer1' has gpus"):
        serialization.read(path, Plan)


def test_plan_with_a_wrong_field_names_file_field_and_value(tmp_path):
    document = serialization.to_json(small_plan())
    document["layers"][0]["time"] = "long"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=r"plan\.json: field 'layers\.0\.time' is 'long'"):
        serialization.read(path, Plan)


# -- GPU counts -------------------------------------------------------------------------------------


def test_powers_of_two_and_all_gpus_are_searched():
    assert [gpu_counts_to_search(gpus, 32) for gpus in (1, 2, 3, 6, 8)] == [
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 4, 6),
        (1, 2, 4, 8),
    ]


def test_all_counts_are_the_smallest_of_each_largest_shard():
    # 10 samples on 4 GPUs and on 3 have shards of 3 and of 4; on 6 to 9 GPUs the largest is 2, as on 5.
    assert gpu_counts_to_search(9, 10, "all") == (1, 2, 3, 4, 5)
    for batch in (7, 32, 1000):
        counts = gpu_counts_to_search(batch, batch, "all")
        assert {-(-batch // count) for count in counts} == {-(-batch // count) for count in range(1, batch + 1)}
        assert len(counts) <= 2 * batch**0.5 + 1


@pytest.mark.parametrize(
    ("model", "added"),
    [
        # 60 samples: 20 to 29 GPUs have shards of 3, from 30 on of 2.
        ("ring", ()),
        # A reduce-scatter in each node needs whole nodes of 6: 18 is one of 15 to 19, whose shards are 4.
        ("hierarchical", (18, 24)),
        # Only powers of two need no fold: 16 is one of those too.
        ("halving-doubling", (16, 32)),
        ("best", (16, 18, 24, 32)),
    ],
)
def test_all_counts_hold_those_that_the_all_reduce_favours(model, added):
    found = gpu_counts_to_search(40, 60, "all", Network(Cluster(40, gpus_per_node=6), model))
    assert found == tuple(sorted({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, *added}))


@given(
    st.integers(2, 40),
    st.integers(1, 9),
    st.integers(0, 60),
    st.sampled_from(get_args(NetworkModel)),
    measured_networks(),
)
def test_counts_of_some_gpus_are_counts_of_more(gpus, node, spare, model, measured):
    fewer, more = (
        gpu_counts_to_search(n, gpus + spare, "all", Network(Cluster(n, gpus_per_node=node, measured=measured), model))
        for n in (gpus - 1, gpus)
    )
    assert set(fewer) <= set(more) <= {*fewer, gpus}


@given(
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(0, 60),
    st.sampled_from(get_args(NetworkModel)),
    st.sampled_from([64, 12345, 2**20, 2**28]),
    measured_networks(),
)
def test_no_count_left_out_all_reduces_faster_than_one_of_equal_shards(gpus, node, spare, model, size, measured):
    # Inside a node is no slower than between nodes.
    links = Link(1e10, 1e-6, "made by hand"), Link(1e9, 1e-5, "made by hand")
    cluster = Cluster(gpus, "made by hand", node, *links, measured=measured)
    network, batch = Network(cluster, model), gpus + spare
    kept = gpu_counts_to_search(gpus, batch, "all", network)
    for count in range(1, gpus + 1):
        rivals = [other for other in kept if math.ceil(batch / other) == math.ceil(batch / count) and other <= count]
        assert min(network.all_reduce_time(other, size) for other in rivals) <= network.all_reduce_time(count, size) * (
            1 + 1e-12
        )


def test_a_measured_cluster_is_planned_by_what_was_measured():
    graph = make_graph([()], None, [2**20])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b])
    # Four GPUs would halve the computing of two, and pay ten times as much for the all-reduce.
    measured = measured_network({2: (1e-4, 1e-3, 1e-2), 4: (1e-3, 1e-2, 1e-1)})
    cluster = Cluster(4, measured=measured)
    made = plan(profile, cluster, 16)
    assert (made.network_model, made.layers[0].gpu_count) == ("measured", 2)
    assert made.iteration_time == pytest.approx(8e-3 + 1e-3)
    assert (plan(profile, cluster, 16, network_model="ring").layers[0].gpu_count) == 4
    assert plan(profile, Cluster(4), 16).network_model == "ring"


def test_a_plan_on_a_measured_cluster_is_the_same_after_a_file(tmp_path):
    measured = measured_network({2: (1e-4, 1e-3, 1e-2)})
    made = plan(small_profile(), Cluster(2, measured=measured), 16)
    found = serialization.read(serialization.write(made, tmp_path / "plan.json"), Plan)
    assert found.cluster == made.cluster
    assert found.network_model == "measured"


def test_a_plan_lists_all_reduces_beyond_the_measured_range():
    graph = make_graph([()], None, [2**20])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b])
    measured = measured_network({2: (1e-5, 1e-5, 1e-3), 3: (1e-5, 1e-5, 1e-3)})
    far = plan(profile, Cluster(8, measured=measured), 16)
    assert far.layers[0].gpu_count == 8
    assert "All-reduces of more than 3 GPUs were not measured" in far.explain()
    assert "not measured" not in plan(profile, Cluster(2, measured=measured), 16).explain()


def test_measured_network_costs_need_measurements():
    with pytest.raises(InvalidValueError, match="'measured' needs a measured cluster, 'dgx-a100' was not measured"):
        plan(small_profile(), Cluster(4), 16, network_model="measured")


def test_data_parallelism_is_costed_on_all_gpus_where_they_are_not_searched():
    # 7 and 8 GPUs have shards of 2 out of 14 samples; 7 synchronise faster.
    graph = make_graph([()], None, [2**26])
    problem = profile_from_times(graph, [lambda b: 1e-3 * b]), Cluster(8), 14
    made = plan(*problem, gpu_counts="all")
    assert made.gpu_counts == (1, 2, 3, 4, 5, 7)
    link = made.cluster.inside
    assert made.data_parallel_iteration_time == pytest.approx(2e-3 + 14 * (link.latency + 2**26 / 8 / link.bandwidth))
    assert made.iteration_time == pytest.approx(2e-3 + 12 * (link.latency + 2**26 / 7 / link.bandwidth))
    assert made.data_parallel_iteration_time == plan(*problem).data_parallel_iteration_time


@pytest.mark.parametrize("limit", [None, 1.2, 2.0])
def test_more_counts_never_make_a_slower_plan(limit):
    problem = small_profile(), 6, 32
    powers, every = plan(*problem, limit), plan(*problem, limit, gpu_counts="all")
    assert set(every.gpu_counts) > {1, 2, 4}
    assert every.iteration_time <= powers.iteration_time * (1 + 1e-12)

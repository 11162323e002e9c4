"""Memory of each GPU against a count of every tensor on every GPU."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.graph.layer import LayerGraph
from deeppool.planning.evaluate.memory import MemoryModel
from deeppool.planning.plan import Plan
from tests.planning.searched import frontier, plan
from tests.sampling import examples
from tests.strategies import make_graph, problems, profile_from_times, series_parallel_graphs, tangled_graphs

COPIES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


@st.composite
def graphs_with_memory(draw, graphs=None):
    """Layers that keep something; some of them share all their parameters with others."""
    graph = draw(graphs if graphs is not None else st.one_of(series_parallel_graphs(), tangled_graphs()))
    pool = {name: draw(st.sampled_from([4, 4096, 2**20])) for name in ("a", "b", "c", "d")}
    layers = []
    for layer in graph.layers:
        name = draw(st.sampled_from([None, *pool]))
        kept = draw(st.sampled_from([0, 64, 4096, 2**18]))
        layers.append(
            replace(
                layer,
                parameters=() if name is None else (name,),
                parameter_bytes=pool.get(name, 0),
                activation_bytes=kept,
                autocast_activation_bytes=kept // 2,
            )
        )
    used = {name for layer in layers for name in layer.parameters}
    return LayerGraph(graph.model, graph.input_shape, tuple(layers), sum(pool[name] for name in used))


class Count:
    """Reference count of the memory model, GPU by GPU; shares no code with it."""

    def __init__(self, graph, batch, optimizer, autocast):
        self.graph, self.batch, self.optimizer, self.autocast = graph, batch, optimizer, autocast

    def shard(self, gpus, gpu):
        return len(np.array_split(range(self.batch), len(gpus))[gpus.index(gpu)]) if gpu in gpus else 0

    def on(self, gpu, gpu_sets):
        """(parameters, gradients, state, activations, received) of one GPU."""
        parameters, kept, received = {}, 0, 0
        for layer, gpus in zip(self.graph.layers, gpu_sets, strict=True):
            if gpu not in gpus:
                continue
            parameters[layer.parameters] = layer.parameter_bytes
            samples = self.shard(gpus, gpu)
            kept += samples * (layer.autocast_activation_bytes if self.autocast else layer.activation_bytes)
            for source, size in zip(layer.predecessors, layer.input_bytes, strict=True):
                received += samples * size * (gpu_sets[source] != gpus)
        size = sum(parameters.values())
        copies = size // 2 if self.autocast else 0
        return size + copies, size, COPIES[self.optimizer] * size, kept, received

    def peak(self, gpu_sets):
        return max(sum(self.on(gpu, gpu_sets)) for gpus in gpu_sets for gpu in gpus)


@st.composite
def placements(draw):
    """(graph, GPU sets, GPUs, batch): sets of any GPUs, as when branches run side by side."""
    graph = draw(graphs_with_memory())
    gpus = draw(st.integers(1, 6))
    some = st.sets(st.integers(0, gpus - 1), min_size=1).map(lambda found: tuple(sorted(found)))
    choices = draw(st.lists(some, min_size=1, max_size=3))
    # Equal sets that are not one object are equal all the same.
    sets = [(*draw(st.sampled_from(choices)),) for _ in graph.layers]
    return graph, sets, gpus, draw(st.integers(6, 20))


@examples(150)
@given(placements(), st.sampled_from(sorted(COPIES)), st.booleans())
def test_memory_of_every_gpu_equals_the_count_of_its_tensors(placement, optimizer, autocast):
    graph, sets, gpus, batch = placement
    model, count = MemoryModel(graph, batch, optimizer, autocast), Count(graph, batch, optimizer, autocast)
    uses = model.use(sets, gpus)
    assert sorted(gpu for use in uses for gpu in use.gpus) == list(range(gpus))
    for use in uses:
        parts = (use.parameters, use.gradients, use.optimizer_state, use.activations, use.received)
        assert use.total == sum(parts)
        for gpu in use.gpus:
            assert parts == count.on(gpu, sets)
        # GPUs of one record have the same shards; those of two have not, though they may hold as much.
        shards = {tuple(count.shard(layer_gpus, gpu) for layer_gpus in sets) for gpu in use.gpus}
        assert len(shards) == 1
    assert [use.total for use in uses] == sorted((use.total for use in uses), reverse=True)
    assert len({tuple(count.shard(x, use.gpus[0]) for x in sets) for use in uses}) == len(uses)
    assert model.peak(sets) == uses[0].total == count.peak(sets)


@examples(60)
@given(placements())
def test_layers_of_a_record_add_up_to_it_where_all_are_named(placement):
    graph, sets, gpus, batch = placement
    for use in MemoryModel(graph, batch, "adam", False).use(sets, gpus):
        computed = sum(use.gpus[0] in members for members in sets)
        assert len(use.heaviest) == min(5, computed)
        totals = [layer.total for layer in use.heaviest]
        assert totals == sorted(totals, reverse=True)
        assert all(layer.total == layer.parameters + layer.activations + layer.received for layer in use.heaviest)
        if computed <= 5:
            assert sum(totals) == use.total


def worked_out():
    """conv keeps 1000 bytes a sample and has 100 of parameters; fc, on one GPU, keeps 8 and has 5000."""
    graph = make_graph([(), (0,)], [(), (50,)], [100, 5000], [1000, 8])
    return graph, [(0, 1, 2), (0,)]


def test_an_example_worked_out_by_hand():
    """10 samples on 3 GPUs are 4, 3 and 3; fc has all 10, and its input of 50 bytes a sample came from elsewhere."""
    graph, sets = worked_out()
    first, others, idle = MemoryModel(graph, 10, "momentum", False).use(sets, 4)
    assert (first.gpus, others.gpus, idle.gpus) == ((0,), (1, 2), (3,))
    assert (first.parameters, first.gradients, first.optimizer_state) == (5100, 5100, 5100)
    assert (first.activations, first.received) == (4 * 1000 + 10 * 8, 10 * 50)
    assert [(layer.name, layer.batch, layer.total) for layer in first.heaviest] == [
        ("layer1", 10, 3 * 5000 + 10 * 8 + 10 * 50),
        ("layer0", 4, 3 * 100 + 4 * 1000),
    ]
    assert (others.total, idle.total) == (3 * 100 + 3 * 1000, 0)
    model = MemoryModel(graph, 10, "momentum", False)
    assert model.size(sets, first.total) == 0
    powers = first.total**16 + 2 * others.total**16
    assert model.size(sets, first.total - 1) == model.size(sets, 0) == pytest.approx(powers ** (1 / 16))
    assert str(first) == (
        "GPU 0: 19.4 KiB (parameters 5.0 KiB, gradients 5.0 KiB, optimizer state 5.0 KiB, activations 4.0 KiB, "
        "received 500 B); most: layer1 15.2 KiB at per-GPU batch 10, layer0 4.2 KiB at per-GPU batch 4"
    )
    assert str(others).startswith("GPUs 1-2: 3.2 KiB (parameters 100 B,")
    assert str(idle) == "GPU 3: nothing"


def test_optimizers_and_autocast_by_hand():
    """SGD keeps nothing, Adam two numbers a parameter; autocast halves activations and adds half of the parameters."""
    graph, sets = worked_out()
    totals = {name: MemoryModel(graph, 10, name, False).peak(sets) for name in COPIES}
    assert totals == {
        "sgd": 4580 + 2 * 5100,
        "momentum": 4580 + 3 * 5100,
        "adam": 4580 + 4 * 5100,
        "adamw": 4580 + 4 * 5100,
    }
    assert MemoryModel(graph, 10, "sgd", True).peak(sets) == 500 + 4 * 500 + 10 * 4 + 2 * 5100 + 2550


def test_no_gpu_holds_more_parameters_than_there_are():
    # The second layer ties the first one's 1000 bytes and has a bias of 10.
    graph = make_graph([(), (0,)], [(), (0,)], [1000, 1010], [0, 0])
    tied = replace(graph.layers[1], parameters=("layer0.weight", "layer1.bias"))
    graph = LayerGraph("tied", (3,), (graph.layers[0], tied), 1010)
    (use,) = MemoryModel(graph, 4, "sgd", False).use([(0,), (0,)], 1)
    assert use.parameters == 1010


def test_65536_gpus_are_a_few_records():
    graph = make_graph([(), (0,), (1,)], [(), (4,), (4,)], [8, 8, 8], [4, 4, 4])
    gpus = 2**16
    sets = [tuple(range(gpus)), tuple(range(2**10)), (0,)]
    uses = MemoryModel(graph, gpus + 5, "sgd", False).use(sets, gpus)
    assert [(use.gpus[0], use.gpus[-1]) for use in uses] == [
        (0, 0),
        (1, 4),
        (5, 1023),
        (1024, gpus - 1),
    ]


def test_an_unknown_optimizer_raises_with_the_known_ones():
    with pytest.raises(InvalidValueError, match="optimizer is 'lion', expected one of sgd, momentum, adam, adamw"):
        MemoryModel(worked_out()[0], 4, "lion", False)


# -- in a plan --------------------------------------------------------------------------------------


def profile_of(graph):
    return profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 1e-4 + 1e-5 * b])


def test_a_plan_reports_the_memory_of_its_gpus_and_keeps_it_in_a_file(tmp_path):
    graph, _ = worked_out()
    made = plan(profile_of(graph), Cluster(4), 16, 2.0, optimizer="adam")
    model = MemoryModel(graph, 16, "adam", False)
    assert made.memory == model.use([layer.gpus for layer in made.layers], 4)
    assert (made.optimizer, made.cluster.memory) == ("adam", 40e9)
    assert serialization.read(serialization.write(made, tmp_path / "plan.json"), Plan) == made


def test_profile_in_sixteen_bits_counts_autocast():
    graph, _ = worked_out()
    made = plan(replace(profile_of(graph), precision="bf16"), 4, 16)
    assert made.memory == MemoryModel(graph, 16, "momentum", True).use([layer.gpus for layer in made.layers], 4)


def test_plan_of_a_profile_without_activation_sizes_is_not_checked():
    graph = make_graph([(), (0,)], [(), (50,)], [100, 2**40])
    assert plan(profile_of(graph), Cluster(4), 16).memory == ()


def test_plan_from_before_memory_was_counted_is_still_read(tmp_path):
    made = plan(profile_of(worked_out()[0]), Cluster(4), 16)
    document = serialization.to_json(made)
    del document["memory"], document["optimizer"], document["cluster"]["memory"]
    assert serialization.from_json(document, Plan, "plan.json") == replace(made, memory=())


@examples(60)
@given(problem=problems(graphs_with_memory()), optimizer=st.sampled_from(sorted(COPIES)))
def test_the_frontier_reports_the_memory_of_the_fullest_gpu_of_every_plan_and_of_data_parallelism(problem, optimizer):
    profile, cluster, batch = problem
    found = frontier(*problem, optimizer=optimizer)
    count = Count(profile.graph, batch, optimizer, autocast=False)
    for point in found.points:
        sets = [range(a, a + n) for a, n in zip(point.first_gpus, point.gpu_counts, strict=True)]
        assert point.memory == max(sum(count.on(gpu, sets)) for gpu in range(cluster.gpus))
    for one in found.comparison.data_parallel:
        assert one.memory == sum(count.on(0, [range(one.gpus)] * len(profile.graph.layers)))


def test_the_frontier_marks_the_plans_that_fit():
    graph = make_graph([(), (0,)])
    graph = replace(graph, layers=tuple(replace(layer, activation_bytes=10**6) for layer in graph.layers))
    profile = profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 1e-3 + 1e-4 * b])
    found = frontier(profile, 8, 16, memory=20e6)
    assert {point for point in found.points if point.memory <= 20e6} == set(found.fitting)
    assert 0 < len(found.fitting) < len(found.points)
    assert len(found.points) - len(found.fitting) == 1
    assert "; 1 needs more than the 19.1 MiB of a GPU" in str(found)

"""Compared methods send every gradient once, in iterations that a replay of their transfers confirms."""

from collections import Counter
from dataclasses import replace

import pytest

import deeppool as dp
from deeppool import figures
from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.transfer_methods import CARAMEL, DDP, DEAR, HOROVOD, SERVERS, SHARDED, TUNED_DDP
from deeppool.errors import InvalidValueError, PlanError
from deeppool.profiling.table import Measurement, Profile
from deeppool.simulation.transfers.comparison import TransferComparison
from deeppool.simulation.transfers.parts import parts_of
from tests.strategies import make_graph, make_profile

MIB = 2**20
LINK = Link(1e9, 1e-4, "by hand")
CLUSTER = Cluster(4, "by hand", 1, LINK, LINK)
SIZES = [MIB, 0, 2 * MIB, 64 * MIB, 8 * MIB]
"""Bytes of the parameters of five layers, of which the second one has none."""
FORWARD = [4e-3, 1e-3, 8e-3, 5e-3, 2e-3]


def profile(update_per_byte: float = 0.0) -> Profile:
    graph = make_graph([(), (0,), (1,), (2,), (3,)], parameter_bytes=SIZES)
    times = [Measurement(f"signature{i}", (each,), (2 * each,), (0.0,)) for i, each in enumerate(FORWARD)]
    return make_profile(graph, times, (8,), update_per_byte)


@pytest.fixture(scope="module")
def compared() -> TransferComparison:
    return dp.compare_transfers(profile(), CLUSTER, 32)


def test_parts_begin_at_layers_with_parameters_and_with_their_update() -> None:
    parts, gradients = parts_of(profile(update_per_byte=1e-9), 8, 4)
    assert [part.name for part in parts] == ["layer0", "layer2", "layer3", "layer4"]
    # Layer 1 has no parameters: it belongs to the part of layer 0.
    assert [part.forward for part in parts] == pytest.approx(
        [5e-3 + MIB * 1e-9, 8e-3 + 2 * MIB * 1e-9, 5e-3 + 64 * MIB * 1e-9, 2e-3 + 8 * MIB * 1e-9]
    )
    assert [part.backward for part in parts] == pytest.approx([10e-3, 16e-3, 10e-3, 4e-3])
    assert [(each.name, each.size, each.part) for each in gradients] == [
        ("layer4.weight", 8 * MIB, 3),
        ("layer3.weight", 64 * MIB, 2),
        ("layer2.weight", 2 * MIB, 1),
        ("layer0.weight", MIB, 0),
    ]


def test_layers_before_the_first_parameters_belong_to_the_first_part_and_tied_ones_count_once() -> None:
    plain = profile()
    layers = list(plain.graph.layers)
    layers[0] = replace(layers[0], parameters=(), parameter_bytes=0, parameter_sizes=())
    layers[2] = replace(layers[2], parameters=("w", "b"), parameter_sizes=(2 * MIB - 8, 8))
    layers[4] = replace(layers[4], parameters=("w",), parameter_bytes=2 * MIB - 8, parameter_sizes=(2 * MIB - 8,))
    parts, gradients = parts_of(replace(plain, graph=replace(plain.graph, layers=tuple(layers))), 8, 2)
    assert [part.name for part in parts] == ["layer2", "layer3"]
    assert [part.forward for part in parts] == pytest.approx([13e-3, 7e-3])
    assert [(each.name, each.part) for each in gradients] == [("layer3.weight", 1), ("b", 0), ("w", 0)]


def test_tuned_ddp_has_a_small_first_bucket_where_that_is_faster() -> None:
    """A MiB is ready 100 ms before eight times 4 MiB, and no two buckets of those cost less than one."""
    graph = make_graph([(), *((layer,) for layer in range(9))], parameter_bytes=[*[4 * MIB] * 8, 0, MIB])
    backward = [*[1e-6] * 8, 0.1, 1e-3]
    times = [Measurement(f"signature{i}", (1e-6,), (each,), (0.0,)) for i, each in enumerate(backward)]
    found = dp.compare_transfers(make_profile(graph, times, (8,)), CLUSTER, 32).plan(TUNED_DDP)
    assert [len(each.gradients) for each in found.transfers] == [1, 8]
    # Six steps of a ring over four GPUs, which send a quarter each.
    sent = 6 * (8 * MIB / 1e9 + 1e-4)
    assert found.iteration_time == pytest.approx(10e-6 + sum(backward) + sent)


def test_times_beyond_the_profiles_batches_are_said_to_be_extrapolated(compared: TransferComparison) -> None:
    assert compared.caveats == ()
    beyond = dp.compare_transfers(profile(), CLUSTER, 36)
    (sentence,) = beyond.caveats
    assert "extrapolated beyond batch 8" in sentence
    assert str(beyond).endswith(f"\n  caution: {sentence}")


def test_every_gradient_travels_once_or_in_two_halves(compared: TransferComparison) -> None:
    for each in compared.methods:
        times = Counter(name for transfer in each.plan.transfers for name in transfer.gradients)
        assert set(times) == {"layer0.weight", "layer2.weight", "layer3.weight", "layer4.weight"}
        expected = {SERVERS: {2}, SHARDED: {2}, DEAR: {2}, CARAMEL: {2}}.get(each.method, {1})
        assert set(times.values()) == expected, each.method
    # The large gradient of layer 3 would delay those that are needed before it.
    assert {transfer.pattern for transfer in compared.plan(CARAMEL).transfers} == {
        "sharded-parameter-server-push",
        "sharded-parameter-server-pull",
    }


def test_iterations_end_when_a_replay_of_their_transfers_does(compared: TransferComparison) -> None:
    seconds = {"backward": {0: 10e-3, 1: 16e-3, 2: 10e-3, 3: 4e-3}, "forward": [5e-3, 8e-3, 5e-3, 2e-3]}
    ready, now = {}, 0.0
    for part in (3, 2, 1, 0):
        now += seconds["backward"][part]
        ready[f"layer{[0, 2, 3, 4][part]}.weight"] = now
    for each in compared.methods:
        done, free = dict.fromkeys(range(4), 0.0), 0.0
        for transfer in each.plan.transfers:
            assert transfer.sent >= max(free, *(ready[name] for name in transfer.gradients)) - 1e-12
            free = transfer.done
            done[transfer.part] = max(done[transfer.part], transfer.done)
        end = now
        for part in range(4):
            end = max(end, done[part]) + seconds["forward"][part]
        assert each.plan.iteration_time == pytest.approx(end), each.method
        assert compared.compute_time == pytest.approx(60e-3)
        # All that an iteration adds to computing is waiting for transfers, or for Horovod's cycle.
        exposed = (1 - each.plan.hidden_share) * each.plan.transfer_time
        waiting = each.plan.iteration_time - compared.compute_time
        assert exposed <= waiting + 1e-12 if each.method == HOROVOD else exposed == pytest.approx(waiting)


def test_prices_are_those_of_the_links(compared: TransferComparison) -> None:
    total = sum(SIZES)
    ring = [6 * (1e-4 + size / 4 / 1e9) for size in SIZES if size]
    assert compared.plan(DDP).transfer_time <= sum(ring)
    assert compared.plan(HOROVOD).transfer_time >= 6 * total / 4 / 1e9
    # One server receives three buffers at once, and sends three.
    assert compared.plan(SERVERS).transfer_time == pytest.approx(2 * sum(1e-4 + 3 * s / 1e9 for s in SIZES if s))
    assert compared.plan(SHARDED).transfer_time == pytest.approx(2 * sum(1e-4 + 0.75 * s / 1e9 for s in SIZES if s))


@pytest.mark.parametrize("per_node", [1, 4])
def test_on_gpus_of_several_nodes_the_library_sends_through_all_ports(per_node: int) -> None:
    near, far = Link(20e9, 1e-5, "by hand"), Link(1e9, 1e-4, "by hand")
    nodes = Cluster(16, "by hand", per_node, near, far)
    compared = dp.compare_transfers(replace(profile(), device="cuda"), nodes, 128)
    # Every GPU sends its share between the nodes, where one ring over all GPUs would send all through one port of a
    # node. On nodes of one GPU the two are the same.
    inside, between = per_node, 16 // per_node

    def seconds(size: int) -> float:
        share = size / inside
        return 2 * (inside - 1) * (1e-5 + share / 20e9) + 2 * (between - 1) * (1e-4 + share / between / 1e9)

    # DDP's buckets of 1 and 25 MiB: layer 4, layer 3, and layers 2 and 0, each sent after the one before.
    first, second, last = (seconds(size * MIB) for size in (8, 64, 3))
    end = max(max(4e-3 + first, 14e-3) + second, 40e-3) + last
    assert compared.plan(DDP).iteration_time == pytest.approx(20e-3 + end)
    assert compared.plan(TUNED_DDP).iteration_time <= compared.plan(DDP).iteration_time
    assert compared.plan(CARAMEL).iteration_time <= compared.plan(TUNED_DDP).iteration_time
    # In halves, or fused, the same bytes take the same time.
    assert compared.plan(DEAR).transfer_time >= seconds(75 * MIB) - 1e-12
    assert compared.plan(HOROVOD).transfer_time <= 3 * seconds(0) + seconds(75 * MIB) + 1e-12


def test_best_buckets_are_no_worse_than_any_that_is_tried(compared: TransferComparison) -> None:
    assert compared.plan(TUNED_DDP).iteration_time <= compared.plan(DDP).iteration_time
    assert compared.plan(TUNED_DDP).size_bound is not None
    assert compared.speedup(DDP, TUNED_DDP) >= 1
    assert compared.speedup(SERVERS) == compared.plan(SERVERS).iteration_time / compared.plan(CARAMEL).iteration_time


def test_more_servers_take_parameters_in_turn() -> None:
    plan = dp.compare_transfers(profile(), CLUSTER, 32, servers=2).plan(SERVERS)
    placed = {name: transfer.ranks for transfer in plan.transfers for name in transfer.gradients}
    assert placed == {"layer0.weight": (0,), "layer2.weight": (1,), "layer3.weight": (0,), "layer4.weight": (1,)}
    one = dp.compare_transfers(profile(), CLUSTER, 32).plan(SERVERS)
    assert plan.iteration_time < one.iteration_time
    assert plan.transfer_time < one.transfer_time


def test_a_comparison_prints_a_line_per_method_and_has_a_figure(compared: TransferComparison) -> None:
    lines = str(compared).splitlines()
    assert lines[0] == ("drawn, batch 32 on 4 GPUs (by hand), predicted from estimated layer times: 60 ms of computing")
    assert [line.strip().partition("  ")[0] for line in lines[1:]] == [each.method for each in compared.methods]
    drawn = figures.of(compared)
    computing, waiting, every = drawn.data
    assert set(computing.x) == {60.0}
    for row, each in enumerate(compared.methods):
        assert computing.x[row] + waiting.x[row] == pytest.approx(1e3 * each.plan.iteration_time)
        assert every.x[row] == pytest.approx(1e3 * each.plan.transfer_time)
    assert "<b>predicted</b> from estimated layer times" in drawn.layout.title.subtitle.text
    plan = compared.plan(CARAMEL)
    assert figures.of(plan) == figures.timeline(plan.timeline())


def test_what_cannot_be_compared_is_refused(compared: TransferComparison) -> None:
    with pytest.raises(InvalidValueError, match="has 1 GPU, so no gradients are sent"):
        dp.compare_transfers(profile(), replace(CLUSTER, gpus=1), 32)
    with pytest.raises(InvalidValueError, match="servers must be at most 4, got 5"):
        dp.compare_transfers(profile(), CLUSTER, 32, servers=5)
    with pytest.raises(PlanError, match="4 GPUs cannot share a global batch of 3"):
        dp.compare_transfers(profile(), CLUSTER, 3)
    with pytest.raises(InvalidValueError, match="'ByteScheduler' was not simulated \\(there are parameter server"):
        compared.plan("ByteScheduler")
    bare = make_graph([()], parameter_bytes=[0])
    with pytest.raises(InvalidValueError, match="drawn has no parameters"):
        parts_of(make_profile(bare, [Measurement("signature0", (1.0,), (1.0,), (0.0,))], (8,)), 8, 2)

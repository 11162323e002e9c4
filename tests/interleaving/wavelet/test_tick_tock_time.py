"""The predicted iteration of two waves is that of a recurrence, of small steps of time, and of closed forms."""

import random
from dataclasses import replace

import pytest
from torch import nn

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import Network
from deeppool.errors import InvalidValueError
from deeppool.evaluation.experiments.tick_tock import predicted_tick_tock, tick_tock
from deeppool.graph.capture.capture import capture
from deeppool.interleaving.wavelet.predict import (
    partition_costs,
    predict_partitions,
    predict_tick_tock,
    tick_tock_costs,
)
from deeppool.interleaving.wavelet.step_time import vanilla_step_time, waves_step_time
from deeppool.interleaving.wavelet.tick_tock_time import TickTockCosts, tick_tock_time
from deeppool.profiling.table import Measurement, Profile
from tests.strategies import make_graph, make_profile

MB = 10**6
LINK = Link(1e9, 0.0, "by hand")


def ticked(costs: TickTockCosts, step: float = 0.005, iterations: int = 40) -> float:
    """Plays it in small steps of time, with a list of the tasks that may run."""
    ends: dict[tuple[str, int], float] = {}
    left = {
        (kind, number): seconds
        for number in range(iterations)
        for kind, seconds in (("F", costs.forward), ("B", costs.backward), ("E", costs.exchange))
    }
    needs = {
        **{("F", m): [("F", m - 1), ("E", m - 2)] for m in range(iterations)},
        **{("B", m): [("F", m), ("B", m - 1)] for m in range(iterations)},
        **{("E", m): [("B", m), ("E", m - 1)] for m in range(iterations)},
    }
    now = 0.0
    while left:
        # Only the first that is left of a kind: the others need it.
        first = {kind: (kind, number) for kind, number in reversed(left)}.values()
        ready = [task for task in first if all(need[1] < 0 or need in ends for need in needs[task])]
        both = {"F", "B"} <= {kind for kind, _ in ready}
        for task in ready:
            left[task] -= step * (costs.beside if both and task[0] != "E" else 1.0)
            if left[task] <= 1e-9:
                ends[task] = now + step
                del left[task]
        now += step
    half = iterations // 2
    return (ends["E", iterations - 1] - ends["E", half - 1]) / (iterations - half)


def test_where_passes_do_not_slow_each_other_the_slowest_cycle_determines_the_time() -> None:
    draw = random.Random(0)
    for _ in range(200):
        forward, backward, exchange = (draw.uniform(0.1, 4) for _ in range(3))
        # One kind of task after another of its kind, and all of a replica within two iterations.
        expected = max(forward, backward, exchange, (forward + backward + exchange) / 2)
        assert tick_tock_time(TickTockCosts(forward, backward, exchange, 1.0)) == pytest.approx(expected)


@pytest.mark.slow
def test_passes_that_share_the_gpu_take_as_long_as_in_small_steps() -> None:
    draw = random.Random(1)
    for _ in range(12):
        seconds = [round(draw.uniform(0.2, 2), 2) for _ in range(3)]
        costs = TickTockCosts(*seconds, beside=draw.uniform(0.5, 1))
        assert tick_tock_time(costs) == pytest.approx(ticked(costs), rel=0.02), costs


def test_closed_forms() -> None:
    # A GPU that one pass fills gains nothing.
    assert tick_tock_time(TickTockCosts(1.0, 2.0, 0.0, 0.5)) == pytest.approx(3.0)
    # A forward at three quarters of its speed, and what is left of the backward alone.
    assert tick_tock_time(TickTockCosts(1.0, 2.0, 0.5, 0.75)) == pytest.approx(1 / 0.75 + 1.0)
    # Sums that take longer than a step of computing hide all of it.
    assert tick_tock_time(TickTockCosts(1.0, 2.0, 7.0, 0.5)) == pytest.approx(7.0)
    with pytest.raises(InvalidValueError, match=r"beside must be 0\.5 to 1"):
        TickTockCosts(1.0, 1.0, 0.0, 0.4)


def drawn_profile(forward: float, backward: float, sizes: list[int], moved: int = 0) -> Profile:
    """Layers in sequence, whose passes take as long for any batch."""
    edges = [(), *((layer,) for layer in range(len(sizes) - 1))]
    graph = make_graph(edges, [[moved] * len(sources) for sources in edges], sizes)
    times = [Measurement(layer.signature, (forward,) * 4, (backward,) * 4, (0.0,) * 4) for layer in graph.layers]
    return replace(make_profile(graph, times, (1, 2, 4, 8)), device="cuda", device_name="NVIDIA H200")


def keeping(profile: Profile, bytes_a_sample: int) -> Profile:
    """The same profile of layers of which each keeps so much for the backward pass."""
    layers = tuple(replace(layer, activation_bytes=bytes_a_sample) for layer in profile.graph.layers)
    return replace(profile, graph=replace(profile.graph, layers=layers))


def test_a_prediction_sums_the_layers_and_all_gradients() -> None:
    profile = drawn_profile(2e-3, 2e-3, [8 * MB])
    # A ring over 4 sends 2 * 3/4 of 8 MB at 1 GB/s.
    costs = tick_tock_costs(profile, Network(Cluster(4, "by hand", 8, LINK, LINK)), 2)
    # The average of the gradients moves as much as the second of two updates: five times 8 MB at 4.8 TB/s.
    moved = 5 * 8 * MB / 4.8e12
    assert (costs.forward, costs.backward, costs.exchange) == pytest.approx((2e-3, 2e-3 + moved, 12e-3))
    assert costs.beside == pytest.approx(4e-3 / (4e-3 + moved))
    # An update of half a millisecond is on the GPU, after the backward.
    updated = tick_tock_costs(replace(profile, update_per_byte=0.5e-3 / (8 * MB)), Network(Cluster(1)), 2)
    assert (updated.backward, updated.exchange) == pytest.approx((2.5e-3 + moved, 0.0))
    assert updated.beside == pytest.approx(4.5e-3 / (4.5e-3 + moved))
    on_a_core = tick_tock_costs(replace(profile, device="cpu"), Network(Cluster(1)), 2)
    assert on_a_core.beside == 0.5
    one_gpu = predict_tick_tock(profile, Cluster(1, "by hand", 8, LINK, LINK), 2)
    # A forward beside a backward, which is longer by the average.
    two = 2e-3 / costs.beside + moved
    assert (one_gpu.one, one_gpu.two, one_gpu.doubled) == pytest.approx((4e-3, two, 4e-3))
    assert (one_gpu.gain, one_gpu.gain_over_doubled) == pytest.approx((4e-3 / two, 2e-3 / two))
    four = predict_tick_tock(profile, Cluster(4, "by hand", 8, LINK, LINK), 2)
    # All-reduces follow each other, whichever wave they are of.
    assert four.two == pytest.approx(12e-3)
    assert four.gain == pytest.approx(16 / 12)


@pytest.mark.slow
def test_where_weights_are_heavy_the_gain_is_that_of_an_emulated_gpu() -> None:
    """Without the average and the second update a gain of 28 % was predicted, where 17 % are lost."""
    layers = [layer for _ in range(3) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
    captured = capture(nn.Sequential(*layers, nn.Linear(4096, 10)), (4096,))
    (found,) = predicted_tick_tock(captured, "h200", [16])
    one, two, _ = tick_tock(captured, "h200", [16])
    assert found.gain == pytest.approx(two.throughput / one.throughput, rel=0.1)


def test_gradients_that_nobody_computes_are_not_exchanged() -> None:
    profile = drawn_profile(2e-3, 2e-3, [8 * MB])
    unread = replace(profile, graph=replace(profile.graph, parameter_bytes=80 * MB))
    network = Network(Cluster(4, "by hand", 8, LINK, LINK))
    assert tick_tock_costs(unread, network, 2) == tick_tock_costs(profile, network, 2)


def test_a_prediction_compares_with_what_a_gpu_holds() -> None:
    """Of 5 MB a sample 14 MB hold two beside nothing; twice as many take two micro-steps, here as long as one each."""
    profile = keeping(drawn_profile(2e-3, 2e-3, [0, 0]), 5 * MB // 2)
    small = Cluster(2, "by hand", 8, LINK, LINK, 14 * MB)
    found = predict_tick_tock(profile, small, 2)
    assert (found.one, found.doubled, found.micro_steps) == pytest.approx((8e-3, 16e-3, 2))
    assert str(found).endswith("times as one of twice the batch in 2 micro-steps")
    assert predict_tick_tock(profile, replace(small, memory=None), 2).doubled == pytest.approx(8e-3)


def test_partitions_that_rotate_are_compared_with_ddp_where_a_gpu_holds_the_model() -> None:
    """Two layers of 4 ms: waves of both train two batches in 8 ms and their transfers, DDP in 8 ms and one sum."""
    profile = keeping(drawn_profile(2e-3, 2e-3, [MB, MB]), 1000)
    cluster = Cluster(2, "by hand", 8, LINK, LINK, None)
    found = predict_partitions(profile, cluster, 2)
    # Weights go out once, and the gradients of the first partition come in when nothing is left to compute.
    assert found.waves == pytest.approx(8e-3 + 0.5e-3 + 1e-3)
    assert found.plain == pytest.approx(16e-3)
    # Both gradients share a bucket.
    assert found.data_parallel == pytest.approx(8e-3 + 2e-3)
    assert str(found).endswith("1.68 times as fast as one rank at a time; 1.05 times as fast as DDP")
    # An update takes twice as long where a rank updates both partitions.
    updated = predict_partitions(replace(profile, update_per_byte=1e-3 / MB), cluster, 2)
    for name, more in (("waves", 1e-3), ("plain", 1e-3), ("data_parallel", 2e-3)):
        assert getattr(updated, name) == pytest.approx(getattr(found, name) + more)
    # Parameters, gradients and momentum of both are 6 MB.
    tight = predict_partitions(profile, replace(cluster, memory=5.0 * MB), 2)
    assert (tight.data_parallel, tight.gain_over_data_parallel) == (None, None)
    assert str(tight).endswith("; DDP does not fit")


def test_costs_of_partitions_count_the_slowest_link_and_each_tensor_once() -> None:
    profile = drawn_profile(1e-3, 2e-3, [MB, 2 * MB, MB, 0], moved=1000)
    far = replace(LINK, bandwidth=1e8)
    first, second = partition_costs(profile, [(0, 1), (2, 3)], Cluster(8, "by hand", 8, LINK, far), 4)
    assert (first.forward, first.backward, first.moved) == pytest.approx((2e-3, 4e-3, 4e-6))
    # A ring over 2 sends all bytes once.
    assert (first.weights, first.gradients, second.gradients) == pytest.approx((1.5e-3, 3e-3, 1e-3))
    assert second.moved == 0.0
    apart, _ = partition_costs(profile, [(0, 1), (2, 3)], Cluster(8, "by hand", 1, LINK, far), 4)
    assert (apart.moved, apart.gradients) == pytest.approx((4e-5, 3e-2))
    costs = [first, second]
    assert 1.0 < 2 * vanilla_step_time(costs) / waves_step_time(costs) < 2.0

"""The table of all prices against asking for each price by itself."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.buckets import DDP_BUCKETS, ONE_BUCKET, Buckets
from deeppool.collectives.layout import Layout
from deeppool.costs.communication import Network
from deeppool.costs.table import price, reprice
from deeppool.errors import MissingProfileError
from deeppool.planning.request import gpu_counts_to_search
from deeppool.profiling.table import Profile
from tests.sampling import examples
from tests.strategies import make_graph, measured_network, problems, profile_from_times, repeating_profiles

FIELDS = ("forward", "backward", "sync", "extrapolated", "reshard_latency", "reshard_per_byte")


def table_of(problem):
    profile, cluster, batch = problem
    return price(profile, Network(cluster), batch, gpu_counts_to_search(cluster.gpus, batch))


def equal(some, other):
    return all(np.array_equal(getattr(some, name), getattr(other, name)) for name in FIELDS)


def with_times_scaled(profile, signatures, factor):
    return replace(
        profile,
        measurements=tuple(
            replace(x, forward=tuple(factor * t for t in x.forward), backward=tuple(factor * t for t in x.backward))
            if x.signature in signatures
            else x
            for x in profile.measurements
        ),
    )


@examples(100)
@given(problems(made_of=repeating_profiles))
def test_every_entry_is_what_profile_and_network_say_of_it(problem):
    profile, cluster, batch = problem
    costs, network = table_of(problem), Network(cluster)
    for k, count in enumerate(costs.gpu_counts):
        for index, layer in enumerate(profile.graph.layers):
            time = profile.time(index, -(-batch // count))
            assert costs.forward[index, k] == time.forward
            assert costs.backward[index, k] == time.backward
            assert costs.extrapolated[index, k] == time.extrapolated
            assert costs.sync[index, k] == network.all_reduce_time(count, layer.parameter_bytes)
        for j, other in enumerate(costs.gpu_counts):
            latency, per_byte = network.reshard_terms(
                Layout(tuple(range(count)), batch), Layout(tuple(range(other)), batch)
            )
            assert costs.comm(1000)[k, j] == pytest.approx(2 * (latency + 1000 * per_byte), rel=1e-12)


@pytest.mark.parametrize(
    ("buckets", "overlap", "copied"),
    [
        (Buckets(alone=4 * 2**20), True, [1.0, 3.0, 0.0]),
        (Buckets(alone=2**21), True, [1.0, 0.0, 0.0]),
        (ONE_BUCKET, True, [1.0, 3.0, 5.0]),
        (DDP_BUCKETS, True, [1.0, 3.0, 5.0]),
        (ONE_BUCKET, False, [0.0, 0.0, 0.0]),
    ],
)
def test_gradients_that_share_a_bucket_are_copied_where_several_gpus_sum_them(buckets, overlap, copied):
    """Gradients of 1, 3 and 5 MiB are copied in a second per MiB, beside the layer's own backward."""
    profile = profile_from_times(make_graph([(), (0,), (1,)], None, [2**20, 3 * 2**20, 5 * 2**20]), [lambda b: 1.0] * 3)
    measured = replace(measured_network({2: (1e-6, 2e-6, 3e-6)}), copy_seconds_per_byte=2.0**-20)
    network = Network(Cluster(2, measured=measured), "measured")
    costs = replace(price(profile, network, 8, (1, 2)), buckets=buckets, overlap=overlap)
    own = costs.own_backward
    assert costs.backward[:, 0].tolist() == own[:, 0].tolist()
    assert (costs.backward - own)[:, 1].tolist() == copied
    assert (costs.compute - costs.forward).tolist() == costs.backward.tolist()
    # Where the network is priced by the links of the cluster, nothing was measured.
    ring = replace(costs, network=Network(network.cluster, "ring"))
    assert ring.backward.tolist() == own.tolist()


def test_equal_layers_are_asked_for_once(monkeypatch):
    graph = make_graph([(), (0,), (1,), (2,)], parameter_bytes=[0, 4096, 4096, 0])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b] * 4)
    layers = tuple(
        replace(layer, signature=f"signature{index % 2}") for index, layer in enumerate(profile.graph.layers)
    )
    profile = replace(profile, graph=replace(graph, layers=layers), measurements=profile.measurements[:2])
    asked = []
    time, all_reduce_time = Profile.time, Network.all_reduce_time
    monkeypatch.setattr(Profile, "time", lambda self, *of: asked.append(of) or time(self, *of))
    monkeypatch.setattr(Network, "all_reduce_time", lambda self, *of: asked.append(of) or all_reduce_time(self, *of))
    price(profile, Network(Cluster(4)), 16, (1, 4))
    # Layers 0 and 1 at 16 and 4 samples a GPU; no bytes and 4096 bytes on 1 and on 4 GPUs.
    assert asked == [(0, 16), (0, 4), (1, 16), (1, 4), (1, 0), (4, 0), (1, 4096), (4, 4096)]


@examples(100)
@given(st.data(), problems(made_of=repeating_profiles), st.floats(0.1, 10))
def test_repricing_what_changed_equals_pricing_everything(data, problem, factor):
    profile, cluster, batch = problem
    changed = data.draw(st.sets(st.sampled_from([x.signature for x in profile.measurements])))
    slower = with_times_scaled(profile, changed, factor)
    layers = [index for index, layer in enumerate(profile.graph.layers) if layer.signature in changed]
    old = table_of(problem)
    untouched = table_of(problem)
    assert equal(reprice(old, slower, layers), table_of((slower, cluster, batch)))
    assert equal(old, untouched)


def test_repricing_asks_only_for_what_changed(monkeypatch):
    profile = profile_from_times(make_graph([(), (0,), (1,)]), [lambda b: 1e-3 * b] * 3)
    costs = price(profile, Network(Cluster(4)), 16, (1, 4))
    asked = []
    time = Profile.time
    monkeypatch.setattr(Profile, "time", lambda self, *of: asked.append(of) or time(self, *of))
    reprice(costs, profile, [1])
    assert asked == [(1, 16), (1, 4)]
    assert reprice(costs, profile, []) is costs


def test_a_batch_below_the_profile_is_refused_by_name():
    profile = profile_from_times(make_graph([(), (0,)]), [lambda b: 1e-3 * b] * 2, batch_sizes=(4, 8))
    with pytest.raises(MissingProfileError, match="'layer0' at per-GPU batch 2"):
        price(profile, Network(Cluster(4)), 8, (1, 2, 4))


def test_what_shares_a_bucket_adds_no_latency_of_its_own():
    """8 MiB by themselves take two steps of 10 ms on two GPUs; of a bucket of 25 MiB and what completes it a share."""
    link = Link(1e18, 10e-3, "by hand")
    graph = make_graph([(), *((x,) for x in range(6))], parameter_bytes=[2**23] * 7)
    costs = price(profile_from_times(graph, [lambda b: 1.0] * 7), Network(Cluster(2, "two", 2, link, link)), 4, (1, 2))
    for alone, seconds in ((2**23, 20e-3), (2**24, 20e-3 * 8 / (25 + 16)), (None, 20e-3 * 8 / (25 + 8))):
        found = replace(costs, buckets=Buckets(alone=alone)).least_sync
        assert found[:, 1].tolist() == pytest.approx([seconds] * 7)
    # One bucket of all is of 56 MiB.
    assert replace(costs, buckets=ONE_BUCKET).least_sync[:, 1].tolist() == pytest.approx([20e-3 / 7] * 7)


def test_a_tied_parameter_counts_once_beside_a_bias():
    """The second layer uses the first one's 8 bytes and has 4 of its own."""
    graph = make_graph([(), (0,)], parameter_bytes=[8, 12])
    head = replace(graph.layers[1], parameters=("layer0.weight", "layer1.bias"), parameter_sizes=(8, 4))
    graph = replace(graph, layers=(graph.layers[0], head))
    profile = replace(profile_from_times(graph, [lambda b: 1.0] * 2), update_per_byte=2.0)
    network = Network(Cluster(2))
    costs = price(profile, network, 4, (1, 2))
    assert costs.update.tolist() == [16, 8]
    assert costs.sync[:, 1].tolist() == [network.all_reduce_time(2, 8), network.all_reduce_time(2, 4)]


def test_updates_count_tied_parameters_once_and_nothing_in_the_papers_model():
    """Four layers of 8, 8, 0 and 4 bytes, of which the first two have the same 8; 2 s a byte."""
    graph = make_graph([(), (0,), (1,), (2,)], parameter_bytes=[8, 8, 0, 4])
    tied = [replace(graph.layers[1], parameters=graph.layers[0].parameters)]
    graph = replace(graph, layers=(graph.layers[0], *tied, *graph.layers[2:]))
    profile = replace(profile_from_times(graph, [lambda b: 1.0] * 4), update_per_byte=2.0)
    costs = price(profile, Network(Cluster(2)), 4, (1, 2))
    assert costs.update.tolist() == [16, 0, 0, 8]
    assert costs.single_gpu_time == 4 + 24
    paper = price(profile, Network(Cluster(2), "paper"), 4, (1, 2))
    assert paper.update.tolist() == [0, 0, 0, 0]
    assert paper.single_gpu_time == 4

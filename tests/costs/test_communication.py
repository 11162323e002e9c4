"""Network models against their formulas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.layout import Layout
from deeppool.costs.communication import CROSS_NODE, SAME_NODE, SAME_START, Network, default_model
from tests.strategies import CURVE_SIZES, measured_network

FAST = Link(100e9, 5e-6, "made by hand")
SLOW = Link(10e9, 50e-6, "made by hand")
MEASURED = measured_network({2: (1e-4, 1e-3, 1e-2), 16: (3e-4, 3e-3, 3e-2)})
CLUSTER = Cluster(16, "made by hand", 8, FAST, SLOW, measured=MEASURED)
MODELS = ("ring", "halving-doubling", "hierarchical", "best", "paper", "measured")


def first(gpus, batch=16):
    return Layout(tuple(range(gpus)), batch)


@pytest.mark.parametrize("gpus", [2, 3, 8, 16])
def test_ring_all_reduce_is_its_closed_form(gpus):
    link = FAST if gpus <= 8 else SLOW
    size = 10**8
    # 2 (g - 1) steps; each GPU sends 2 (g - 1) / g of the bytes.
    expected = 2 * (gpus - 1) * link.latency + 2 * (gpus - 1) / gpus * size / link.bandwidth
    assert Network(CLUSTER).all_reduce_time(gpus, size) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("model", ["ring", "halving-doubling", "hierarchical", "best", "paper"])
def test_an_all_reduce_between_nodes_takes_the_slow_link_however_few_gpus_sum(model):
    cluster = Cluster(8, "by hand", 4, Link(1e9, 0.0, "near"), Link(1e8, 0.0, "far"))
    network, size = Network(cluster, model), 10**8
    assert network.all_reduce_time_over((1, 3), size) == network.all_reduce_time(2, size) == pytest.approx(0.1)
    assert network.all_reduce_time_over((1, 6), size) == pytest.approx(1.0)
    assert network.all_reduce_time_over(range(8), size) == network.all_reduce_time(8, size)


@pytest.mark.parametrize("model", ["ring", "halving-doubling", "hierarchical", "best", "paper"])
def test_an_all_reduce_over_nodes_takes_the_links_inside_where_these_are_slow(model):
    near, far = Link(1e8, 0.0, "near"), Link(1e9, 0.0, "far")
    network, even = (Network(Cluster(8, "by hand", 4, near, link), model) for link in (far, near))
    for gpus in ((3, 4), (2, 3, 4), range(5)):
        assert network.all_reduce_time_over(gpus, 10**8) == even.all_reduce_time_over(gpus, 10**8)


@pytest.mark.parametrize("gpus", [2, 3, 8, 16])
def test_papers_all_reduce_is_one_transfer_of_the_gradients(gpus):
    link = FAST if gpus <= 8 else SLOW
    assert Network(CLUSTER, "paper").all_reduce_time(gpus, 10**8) == pytest.approx(
        link.latency + 10**8 / link.bandwidth
    )


def test_halving_doubling_takes_few_steps_for_the_same_bytes():
    found = Network(CLUSTER, "halving-doubling").all_reduce_time(8, 10**8)
    assert found == pytest.approx(2 * 3 * FAST.latency + 2 * 7 / 8 * 10**8 / FAST.bandwidth)
    # Six GPUs are four, after two have handed over their gradients; at the end they get the sums.
    folded = Network(CLUSTER, "halving-doubling").all_reduce_time(6, 10**8)
    fold = 2 * (FAST.latency + 10**8 / FAST.bandwidth)
    assert folded == pytest.approx(2 * 2 * FAST.latency + 2 * 3 / 4 * 10**8 / FAST.bandwidth + fold)


def test_hierarchical_sends_an_eighth_of_the_bytes_between_nodes_of_eight():
    found = Network(CLUSTER, "hierarchical").all_reduce_time(16, 8 * 10**7)
    inside = 2 * 7 * (FAST.latency + 10**7 / FAST.bandwidth)
    between = 2 * 1 * (SLOW.latency + 10**7 / 2 / SLOW.bandwidth)
    assert found == pytest.approx(inside + between)
    assert found < Network(CLUSTER, "ring").all_reduce_time(16, 8 * 10**7)


@given(st.integers(2, 16), st.integers(1, 10**9))
def test_best_is_the_fastest_pattern(gpus, size):
    times = [Network(CLUSTER, model).all_reduce_time(gpus, size) for model in MODELS[:3]]
    assert Network(CLUSTER, "best").all_reduce_time(gpus, size) == min(times)
    nccl = Network(CLUSTER, "nccl")
    assert nccl.all_reduce_time(gpus, size) == (min(times) if gpus > CLUSTER.gpus_per_node else times[0])
    assert nccl.all_reduce_schedule(gpus, size) is None


def test_measured_all_reduces_cost_what_was_measured():
    network = Network(CLUSTER, default_model(CLUSTER, "cpu"))
    for group in MEASURED.all_reduce:
        assert [network.all_reduce_time(group.gpus, size) for size in CURVE_SIZES] == list(group.curve.seconds)
    assert network.all_reduce_time(9, 2**20) == pytest.approx(2e-3)


@pytest.mark.parametrize("model", MODELS)
def test_one_gpu_and_no_bytes_synchronise_for_nothing(model):
    assert Network(CLUSTER, model).all_reduce_time(1, 10**8) == 0
    assert Network(CLUSTER, model).all_reduce_time(8, 0) == 0


def test_a_run_performs_the_pattern_that_is_priced():
    assert Network(CLUSTER, "halving-doubling").all_reduce_schedule(6, 4).pattern == "halving-doubling"
    assert Network(CLUSTER, "hierarchical").all_reduce_schedule(16, 4).pattern == "hierarchical"
    best = Network(CLUSTER, "best")
    # No whole nodes: 8 latencies against the 22 of a ring for few bytes, and fewer bytes in the ring for many.
    assert best.all_reduce_schedule(12, 4).pattern == "halving-doubling"
    assert best.all_reduce_schedule(12, 10**9) is None
    assert best.all_reduce_schedule(16, 10**9).pattern == "hierarchical"
    for library in ("ring", "measured", "paper"):
        assert Network(CLUSTER, library).all_reduce_schedule(16, 10**9) is None


@pytest.mark.parametrize("model", MODELS)
def test_samples_that_stay_cost_nothing(model):
    assert Network(CLUSTER, model).reshard_time(first(4), first(4), 10**6) == 0


def test_reshard_takes_as_long_as_the_busiest_port():
    # 16 samples: GPU 0 keeps 4 of its 16 and sends 12; each of the others receives 4.
    expected = FAST.latency + 12 * 10**6 / FAST.bandwidth
    assert Network(CLUSTER).reshard_time(first(1), first(4), 10**6) == pytest.approx(expected)
    assert Network(CLUSTER).reshard_time(first(4), first(1), 10**6) == pytest.approx(expected)


def test_papers_reshard_moves_the_larger_shard_whatever_stays():
    expected = FAST.latency + 16 * 10**6 / FAST.bandwidth
    assert Network(CLUSTER, "paper").reshard_time(first(1), first(4), 10**6) == pytest.approx(expected)
    assert Network(CLUSTER, "paper").reshard_time(first(4), first(1), 10**6) == pytest.approx(expected)


def test_transfer_that_leaves_the_node_is_priced_at_the_slow_link():
    network = Network(CLUSTER)
    # GPU 8 is the first of the second node.
    assert network.reshard_time(first(8), first(9), 0) == SLOW.latency
    assert network.reshard_time(first(4), first(8), 0) == FAST.latency


@given(st.sampled_from(MODELS), st.integers(1, 16), st.integers(1, 16), st.integers(0, 10**9))
def test_way_back_takes_as_long_as_the_way_there(model, source, target, size):
    # Gradients return the way the activations came; comm() in costs/table.py doubles one way.
    network = Network(CLUSTER, model)
    there = network.reshard_time(first(source), first(target), size)
    assert there == network.reshard_time(first(target), first(source), size)
    assert there >= 0


@given(
    st.integers(1, 16), st.integers(1, 16), st.integers(16, 70), st.sampled_from(["ring", "paper"]), st.integers(0, 15)
)
def test_terms_between_neighbouring_gpus_are_those_of_their_layouts(source, destination, batch, model, start):
    network = Network(CLUSTER, model)
    place = SAME_START if start == 0 else SAME_NODE if start + destination <= 8 else CROSS_NODE
    layouts = Layout(tuple(range(source)), batch), Layout(tuple(range(start, start + destination)), batch)
    assert network.terms_between(source, destination, batch, place) == network.reshard_terms(*layouts)

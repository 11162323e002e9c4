"""Layers and all-reduces as the two machines of a flow shop, by hand; against every assignment in ``test_overlap``."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.buckets import DEFAULT_BUCKETS, SEARCHED_BUCKETS, Buckets
from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search import flow_shop
from deeppool.planning.search.flow_shop import fastest_in_sequence
from deeppool.planning.search.flow_shop_bounds import BoundedBlock
from deeppool.planning.search.flow_shop_labels import TooManyOptionsError
from deeppool.profiling.table import Measurement
from tests.strategies import ALONE_BYTES, make_graph, make_profile

MEBIBYTE = 2**20


def layers(passes, sizes, seconds_per_byte=1e-15, moved=0):
    """Layers in a row on two GPUs: seconds of both passes there, and three times as long on one GPU.

    Each reads ``moved`` bytes of the one before.
    """
    sources = [(), *((index,) for index in range(len(passes) - 1))]
    graph = make_graph(sources, [(moved,) * len(each) for each in sources], sizes)
    measurements = [
        Measurement(layer.signature, (forward, 3 * forward), (backward, 3 * backward), (0.0, 0.0))
        for layer, (forward, backward) in zip(graph.layers, passes, strict=True)
    ]
    link = Link(1 / seconds_per_byte, 0.0, "by hand")
    return price(make_profile(graph, measurements, (1, 2)), Network(Cluster(2, "by hand", 2, link, link)), 2, (1, 2))


def two_layers():
    """A forward pass of 1 s each, backward passes of 2 s and 3 s; all-reduces of their own take 0.5 s and 4 s."""
    return replace(layers([(1.0, 2.0), (1.0, 3.0)], [ALONE_BYTES] * 2), sync=np.array([[0.0, 0.5], [0.0, 4.0]]))


def test_an_all_reduce_hides_behind_the_backward_pass_of_the_layer_before():
    """Both on two GPUs: 1 + 1 forward, 3 backward, 2 backward beside the all-reduce of 4; 2 + 0.5 are left: 9.5 s."""
    options, seconds = fastest_in_sequence(two_layers(), [0, 1], None, math.inf)
    assert options == (1, 1)
    assert seconds == pytest.approx(9.5)


def test_an_all_reduce_that_takes_longer_than_it_saves_keeps_its_layer_on_one_gpu():
    """With 20 s in place of 4, the second layer takes 3 + 9 on one GPU, and the first 1 + 2 + 0.5: 15.5 s."""
    costs = replace(two_layers(), sync=np.array([[0.0, 0.5], [0.0, 20.0]]))
    options, seconds = fastest_in_sequence(costs, [0, 1], None, math.inf)
    assert options == (1, 0)
    assert seconds == pytest.approx(15.5)


def test_a_tied_parameter_is_all_reduced_over_the_gpus_of_the_layer_that_has_more():
    """The first layer takes 1 + 2 s on one GPU, too, the second 1 + 3 s on two: 7 s, and 0.5 for the sum over both."""
    graph = make_graph([(), (0,)], parameter_bytes=[ALONE_BYTES] * 2)
    first, second = graph.layers
    graph = replace(graph, layers=(first, replace(second, parameters=first.parameters)))
    measurements = [
        Measurement(first.signature, (1.0, 1.0), (2.0, 2.0), (0.0, 0.0)),
        Measurement(second.signature, (1.0, 3.0), (3.0, 9.0), (0.0, 0.0)),
    ]
    link = Link(2.0 * ALONE_BYTES, 0.0, "by hand")
    costs = price(make_profile(graph, measurements, (1, 2)), Network(Cluster(2, "by hand", 2, link, link)), 2, (1, 2))
    _, seconds = fastest_in_sequence(costs, [0, 1], None, math.inf)
    assert seconds == pytest.approx(7.5)


def test_no_plan_is_faster_than_the_known_one():
    assert fastest_in_sequence(two_layers(), [0, 1], None, 9.5) == (None, 9.5)


def test_small_gradients_on_the_same_gpus_are_sent_with_the_first_layers():
    """1 MiB takes 1 s: on two GPUs 1 + 1 + 1 forward and 2 x 3 backward, and then all 3 MiB at once, 12 s together.

    The first layer on one GPU takes 3 + 6 s, beside which the other 2 MiB are sent: 1 + 1 + 3 + 2 + 2 + 6 = 15 s.
    """
    costs = layers([(1.0, 2.0)] * 3, [MEBIBYTE] * 3, 1 / MEBIBYTE)
    options, seconds = fastest_in_sequence(costs, [0, 1, 2], None, math.inf)
    assert (options, seconds) == ((1, 1, 1), pytest.approx(12.0))


def test_a_last_layer_on_one_gpu_lets_the_others_send_their_gradients_beside_it():
    """The first layer computes 0.1 + 0.2 s on two GPUs and 0.9 s on one, beside which 2 of 3 MiB are sent.

    On two GPUs: 2.1 s forward, 4.2 s backward and 3 s at the end: 9.3 s. With the first layer on one GPU: 2.3 s, 4.6 s
    and what 0.6 s of backward leave of 2 s: 8.3 s.
    """
    costs = layers([(0.1, 0.2), (1.0, 2.0), (1.0, 2.0)], [MEBIBYTE] * 3, 1 / MEBIBYTE)
    options, seconds = fastest_in_sequence(costs, [0, 1, 2], None, math.inf)
    assert (options, seconds) == ((0, 1, 1), pytest.approx(8.3))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [DEFAULT_BUCKETS, *SEARCHED_BUCKETS, Buckets(alone=4 * MEBIBYTE, size=8 * MEBIBYTE)])
def test_a_bucket_is_sent_when_it_is_full(rule):
    """Of ten gradients of 3 MiB the last layers' fill a bucket of 27 MiB: as for each of the 2 ** 10 assignments."""
    costs = replace(layers([(1.0, 20.0)] * 10, [3 * MEBIBYTE] * 10, 0.4 / MEBIBYTE), buckets=rule)
    options, seconds = fastest_in_sequence(costs, range(10), None, math.inf)
    times = [Placement(costs, each, (0,) * 10).iteration_time for each in itertools.product((0, 1), repeat=10)]
    assert options == (1,) * 10
    assert seconds == pytest.approx(min(times))


def test_a_block_counts_as_what_no_way_through_it_beats():
    """Layer 2 is the join of a block between it and layer 0: 1 s forward and 4 s backward, on whatever GPUs.

    Of the join's all-reduce of 7 s the block's backward hides 4 and the first layer's 2, which takes 1 + 2 s; 1 s and
    0.5 of its own are left: 9.5 s. With all-reduces of 6 s in the block, on GPU 0, it is 15.5 s.
    """
    costs = layers([(1.0, 2.0), (50.0, 50.0), (1.0, 3.0)], [ALONE_BYTES] * 3)
    costs = replace(costs, sync=np.array([[0.5, 0.5], [0.0, 0.5], [7.0, 7.0]]))
    block, summed = (BoundedBlock(0, np.full((2, 2), 5.0), np.full((2, 2), lag)) for lag in (-4.0, 2.0))
    assert fastest_in_sequence(costs, [0, 1, 2], None, math.inf, {2: block}) == (None, pytest.approx(9.5))
    assert fastest_in_sequence(costs, [0, 1, 2], None, 9.0, {2: block}) == (None, 9.0)
    assert fastest_in_sequence(costs, [0, 1, 2], None, math.inf, {2: summed}) == (None, pytest.approx(15.5))


def test_ways_that_the_search_does_not_go_on_with_count_for_what_it_states(monkeypatch):
    """With one way at a time the least of those left out is stated, and never more than the optimum of 9.5 s."""
    monkeypatch.setattr(flow_shop, "MOST_WAYS", (1,))
    options, least = fastest_in_sequence(two_layers(), [0, 1], None, math.inf)
    assert options is not None
    assert least <= 9.5


def test_more_ways_follow_where_those_left_out_may_be_faster(monkeypatch):
    """One way at a time states less than the optimum of all assignments; with a thousand besides it is found."""
    costs, order = layers([(1.0, 2.0)] * 6, [MEBIBYTE] * 6, 1 / MEBIBYTE), range(6)
    times = [Placement(costs, each, (0,) * 6).iteration_time for each in itertools.product((0, 1), repeat=6)]
    found = []
    for most in ((1,), (1, 1000)):
        monkeypatch.setattr(flow_shop, "MOST_WAYS", most)
        found.append(fastest_in_sequence(costs, order, None, math.inf))
    (_, least), (options, seconds) = found
    assert least < min(times)
    assert seconds == pytest.approx(min(times)) == pytest.approx(Placement(costs, options, (0,) * 6).iteration_time)


def test_options_too_many_to_number_are_given_up():
    # The last layer reads 70 others: 2 to the power of 70 combinations.
    graph = make_graph([*[()] * 70, tuple(range(70))])
    measurements = [Measurement(layer.signature, (1.0,), (1.0,), (0.0,)) for layer in graph.layers]
    link = Link(1e9, 0.0, "by hand")
    costs = price(make_profile(graph, measurements, (1,)), Network(Cluster(2, "by hand", 2, link, link)), 2, (1, 2))
    with pytest.raises(TooManyOptionsError):
        fastest_in_sequence(costs, range(71), None, math.inf)


def test_a_search_without_a_way_left_stops(monkeypatch):
    # It went on with no labels: of a layer that reads seven others, over 17 GPU counts, that took 23 GB of memory.
    added = []
    past = flow_shop._FlowShop._past
    monkeypatch.setattr(flow_shop._FlowShop, "_past", lambda *arguments: added.append(arguments) or past(*arguments))
    assert fastest_in_sequence(two_layers(), [0, 1], None, 1e-3) == (None, 1e-3)
    assert len(added) == 1

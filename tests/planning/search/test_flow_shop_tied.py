"""Tied parameters of the flow shop: which ones are summed over the GPUs of several layers, and when."""

import math
from dataclasses import replace

import numpy as np
import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.buckets import ONE_BUCKET, Buckets
from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.planning.search.flow_shop import fastest_in_sequence
from deeppool.planning.search.flow_shop_labels import FlowShopLabels
from deeppool.planning.search.flow_shop_tied import TiedParameters, cases_of
from deeppool.profiling.table import Measurement
from tests.strategies import make_graph, make_profile, measured_network

SIZE = 100
"""Bytes of a tied parameter."""
FORWARD = {layer: 9 - layer for layer in range(10)}
"""Positions in the backward pass of ten layers in a row."""


def times(options, size):
    """As many seconds as GPUs: option k is 2 ** k of them; but 3 on all 8."""
    assert size == SIZE
    return np.where(options == 3, 3.0, 2.0**options)


def tied(*users, inside=()) -> TiedParameters:
    return TiedParameters(dict.fromkeys(users, SIZE), 4, FORWARD, inside, times)


def ways(pending, options) -> FlowShopLabels:
    zeros = np.zeros(len(options))
    return FlowShopLabels(4, 10, pending, np.array(options), zeros.astype(int), zeros, zeros, zeros.astype(int))


def test_a_sum_takes_what_it_does_over_the_gpus_of_the_layers_unless_the_first_one_has_most():
    """Layer 0 has option 1 and layer 9 option 2, which takes 4 s; option 3 of layer 0 takes 3 s, whatever layer 9 has.

    While layer 0 is not chosen yet, it is 3 s at least.
    """
    found = tied((0, 9))
    assert found.seconds(ways((0, 9), [1 + 4 * 2, 3 + 4 * 2]), 0).tolist() == [4.0, 3.0]
    assert found.awaited(ways((9,), [2]), 5).tolist() == [3.0]
    assert found.awaited(ways((8,), [3]), 5).tolist() == [0.0]
    assert found.awaited(ways((0, 9), [1 + 4 * 2]), 10).tolist() == [0.0]


def test_the_option_of_a_layer_is_kept_until_the_first_one_that_shares_its_parameter():
    assert tied((0, 9), (3, 5, 9)).kept == {9: 0, 0: 0, 3: 3, 5: 3}


def test_parameters_of_blocks_count_for_their_first_layer():
    assert tied((0, 9), inside={9}).users == {}


def test_each_case_of_a_small_parameter_is_searched():
    """A large one by itself never shares a bucket, a small one or what else its first layer has may."""
    large, small = {(0, 9): SIZE}, {(1, 9): SIZE - 1}
    assert cases_of({}, [], SIZE) == [{}]
    assert cases_of(large, [SIZE], SIZE) == cases_of(large, [2 * SIZE], SIZE) == [large]
    assert cases_of(large, [SIZE + 1], SIZE) == [{}, large]
    assert cases_of(large | small, [SIZE, SIZE - 1], SIZE) == [large, large | small]
    assert cases_of(small | {(2, 9): 1}, [0, SIZE, 1], SIZE) == []


def costs_of(gradients, options, backward, network, rule):
    """Layers in a row of 1 s forward and some backward on one of 1, 2 and 4 GPUs, of 100 s on others.

    The first and the last one share a parameter.
    """
    graph = make_graph([(), *((layer,) for layer in range(len(gradients) - 1))], None, gradients)
    first, *others, last = graph.layers
    shared = {"parameters": first.parameters, "parameter_bytes": first.parameter_bytes}
    graph = replace(graph, layers=(first, *others, replace(last, **shared)))
    measurements = []
    for layer, own, seconds in zip(graph.layers, options, backward, strict=True):
        forward = [1.0 if batch == 4 >> own else 100.0 for batch in (1, 2, 4)]
        measurements.append(Measurement(layer.signature, tuple(forward), (seconds,) * 3, (0.0,) * 3))
    return replace(price(make_profile(graph, measurements, (1, 2, 4)), network, 4, (1, 2, 4)), buckets=rule)


def test_a_small_gradient_of_a_layer_with_more_gpus_does_not_hold_up_the_bucket_of_others():
    """The second layer's 10 MiB are sent beside the first one's backward, and then 1 MiB over 4 GPUs, in 1.5 s.

    In one bucket, as they would be on 2 GPUs, they would be sent behind it: 26 s.
    """
    link = Link(2.0**20, 0.0, "by hand")
    network = Network(Cluster(4, "by hand", 4, link, link))
    costs = costs_of([2**20, 10 * 2**20, 0], (1, 1, 2), (10.0, 1.0, 1.0), network, ONE_BUCKET)
    options, least = fastest_in_sequence(costs, range(3), None, math.inf)
    assert (options, least) == ((1, 1, 2), pytest.approx(16.5))


def test_a_gradient_is_summed_over_the_gpus_of_the_first_layer_where_these_are_most():
    """Over 4 GPUs that takes 1 s, over the 2 of the other layer 5 s."""
    measured, link = measured_network({2: (5.0,) * 3, 4: (1.0,) * 3}), Link(1e9, 0.0, "by hand")
    network = Network(Cluster(4, "by hand", 4, link, link, measured=measured), "measured")
    costs = costs_of([SIZE, 0], (2, 1), (1.0, 1.0), network, Buckets(alone=SIZE))
    options, least = fastest_in_sequence(costs, range(2), None, math.inf)
    assert (options, least) == ((2, 1), pytest.approx(5.0))

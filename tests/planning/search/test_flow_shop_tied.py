"""Tied parameters of the flow shop: which ones are summed over the GPUs of several layers, and when."""

import numpy as np

from deeppool.planning.search.flow_shop_labels import FlowShopLabels
from deeppool.planning.search.flow_shop_tied import TiedParameters
from tests.strategies import ALONE_BYTES

FORWARD = {layer: 9 - layer for layer in range(10)}
"""Positions in the backward pass of ten layers in a row."""


def times(options, size):
    """As many seconds as GPUs: option k is 2 ** k of them."""
    assert size == ALONE_BYTES
    return 2.0**options


def tied(sizes, inside=()) -> TiedParameters:
    return TiedParameters(sizes, ALONE_BYTES, FORWARD, inside, times)


def ways(pending, options) -> FlowShopLabels:
    zeros = np.zeros(len(options))
    return FlowShopLabels(4, 10, pending, np.array(options), zeros.astype(int), zeros, zeros, zeros.astype(int))


def test_a_sum_takes_what_it_does_over_the_layer_with_the_most_gpus():
    """Layer 0 has option 1, layer 9 option 3: eight seconds; while layer 0 is not chosen yet, eight at least."""
    found = tied({(0, 9): ALONE_BYTES})
    both = ways((0, 9), [1 + 4 * 3])
    assert found.seconds(both, 0).tolist() == [8.0]
    assert found.awaited(ways((9,), [3]), 5).tolist() == [8.0]
    assert found.awaited(ways((8,), [3]), 5).tolist() == [0.0]
    assert found.awaited(both, 10).tolist() == [0.0]


def test_the_option_of_a_layer_is_kept_until_the_first_one_that_shares_its_parameter():
    assert tied({(0, 9): ALONE_BYTES, (3, 5, 9): ALONE_BYTES}).kept == {9: 0, 0: 0, 3: 3, 5: 3}


def test_small_parameters_and_those_of_blocks_count_for_their_first_layer():
    assert tied({(0, 9): ALONE_BYTES - 1}).users == {}
    assert tied({(0, 9): ALONE_BYTES}, inside={9}).users == {}

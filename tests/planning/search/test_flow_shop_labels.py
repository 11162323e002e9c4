"""Ways of the flow shop: the options of several layers as the digits of one number."""

import itertools

import numpy as np
import pytest

from deeppool.planning.search.flow_shop_labels import FlowShopLabels, TooManyOptionsError, joined


def ways(pending: tuple[int, ...], options: list[int], seconds: list[float], count: int = 4) -> FlowShopLabels:
    numbers, zeros = np.array(options), np.zeros(len(options))
    return FlowShopLabels(count, 10, pending, numbers, numbers * 0, np.array(seconds), zeros, np.arange(len(options)))


def test_the_first_pending_layer_is_the_lowest_digit():
    """Option 1 of layer 2 and option 3 of layer 5, of four options each: 1 + 4 x 3."""
    found = ways((2, 5), [13], [0.0])
    assert (found.option(2).item(), found.option(5).item()) == (1, 3)


@pytest.mark.parametrize("layer", [1, 4, 9])
def test_a_layer_that_is_read_has_each_option_beside_those_known(layer):
    before = ways((2, 5), [13, 6], [1.0, 2.0])
    found = before.with_options_of(layer)
    assert found.pending == tuple(sorted((2, 5, layer)))
    columns = (found.option(2), found.option(5), found.option(layer), found.seconds)
    known = [(1, 3, 1.0), (2, 1, 2.0)]
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == sorted(
        (first, second, option, seconds) for (first, second, seconds), option in itertools.product(known, range(4))
    )
    without = found.without(layer)
    assert without.pending == (2, 5)
    assert sorted(without.options.tolist()) == [6] * 4 + [13] * 4


def test_options_that_no_number_holds_are_refused():
    with pytest.raises(TooManyOptionsError):
        ways(tuple(range(31)), [0], [0.0]).with_options_of(31)


def test_ways_are_kept_joined_and_end_with_their_all_reduces():
    first, second = ways((2,), [0, 1], [1.0, 2.0]), ways((2,), [3], [5.0])
    both = joined([first.keep(np.array([1])), second])
    assert both.options.tolist() == [1, 3]
    assert both.ends.tolist() == [2.0, 5.0]

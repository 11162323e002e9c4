"""What the layers to come add at least to a way of the flow shop, by hand and against every assignment."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search.flow_shop_bounds import BoundedBlock, RestBounds
from deeppool.planning.search.limited_costs import LimitedCosts
from tests.planning.search.test_flow_shop import layers, two_layers
from tests.strategies import ALONE_BYTES


def bounds(costs, sync, blocks=None) -> RestBounds:
    backward: Sequence[int] = range(len(costs.graph.layers))[::-1]
    return RestBounds(costs, sync, backward, LimitedCosts(costs, None), blocks or {})


def least(found: RestBounds, seconds: float, lag: float, position: int, option: int | None = None) -> float:
    options = None if option is None else np.array([option])
    return found.least(np.array([seconds]), np.array([lag]), position, options).item()


def test_a_layer_adds_its_passes_or_what_it_sends():
    """The first layer on two GPUs: 1 + 2 s after 5 s, of its all-reduce 0.5 s where a lag of 10 s is before it.

    With a lag of 10 s an iteration takes 5 + 1 + 10 + 0.5 s or more; with none 5 + 1 + 2 s.
    """
    found = bounds(two_layers(), two_layers().sync)
    assert least(found, 5.0, 10.0, 1, option=1) == pytest.approx(16.5)
    assert least(found, 5.0, 0.0, 1, option=1) == pytest.approx(8.0)
    assert least(found, 5.0, 10.0, 2) == pytest.approx(15.0)


def test_any_option_is_the_fastest_one():
    """Of the first layer alone two GPUs take 1 + 2 s, one takes 3 + 6 s."""
    found = bounds(two_layers(), two_layers().sync * 0)
    assert least(found, 0.0, 0.0, 1) == pytest.approx(3.0)
    assert least(found, 0.0, 0.0, 1, option=0) == pytest.approx(9.0)


def test_a_block_may_be_passed_over():
    """From the join on, layer 2 and layer 1 take 1 + 3 and 50 + 50 s, or the block 1 + 4; then layer 0 its 1 + 2."""
    costs = layers([(1.0, 2.0), (50.0, 50.0), (1.0, 3.0)], [ALONE_BYTES] * 3)
    block = BoundedBlock(0, np.full((2, 2), 5.0), np.full((2, 2), -4.0))
    assert least(bounds(costs, np.zeros((3, 2)), {2: (block, 2)}), 0.0, 0.0, 0) == pytest.approx(8.0)
    assert least(bounds(costs, np.zeros((3, 2))), 0.0, 0.0, 0) == pytest.approx(107.0)


def test_no_assignment_takes_less():
    costs = layers([(1.0, 2.0), (0.5, 3.0), (2.0, 1.0)], [ALONE_BYTES] * 3, 0.5 / ALONE_BYTES)
    found = bounds(costs, costs.sync)
    for options in itertools.product((0, 1), repeat=3):
        assert least(found, 0.0, 0.0, 0, options[-1]) <= Placement(costs, options, (0,) * 3).iteration_time

"""Queries of the search to a cost table."""

from dataclasses import replace

import numpy as np
import pytest

from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import SAME_START, Network
from deeppool.costs.table import price
from deeppool.planning.search.limited_costs import LimitedCosts
from tests.strategies import make_graph, profile_from_times


def three_layers():
    """Three layers, of which the last two are equal."""
    graph = make_graph([(), (0,), (1,)], [(), (4096,), (4096,)], [0, 2**20, 2**20])
    first, second, third = graph.layers
    graph = replace(graph, layers=(first, second, replace(third, signature=second.signature)))
    profile = profile_from_times(graph, [lambda b: 1e-3 * b] * 3)
    return price(profile, Network(Cluster(4)), 16, (1, 2, 4))


def test_layers_of_one_signature_are_equal_unless_their_extra_seconds_differ():
    costs = three_layers()
    alike = LimitedCosts(costs, None, np.ones((3, 3)))
    assert alike.shape([1]) == alike.shape([2])
    assert alike.edge(0, 1, SAME_START)[0] == pytest.approx(alike.edge(1, 2, SAME_START)[0])
    different = LimitedCosts(costs, None, np.array([[0.0] * 3, [0.0] * 3, [1.0] * 3]))
    assert different.shape([1]) != different.shape([2])
    assert different.edge(1, 2, SAME_START)[0] == pytest.approx(different.edge(0, 1, SAME_START)[0] + 1)


def test_a_layer_that_ties_its_parameters_is_not_equal_to_one_that_does_not():
    costs = three_layers()
    first, second, third = costs.graph.layers
    graph = replace(costs.graph, layers=(first, second, replace(third, parameters=second.parameters)))
    profile = profile_from_times(graph, [lambda b: 1e-3 * b] * 3)
    prices = LimitedCosts(price(profile, Network(Cluster(4), "paper"), 16, (1, 2, 4)), None)
    assert prices.shape([1]) != prices.shape([2])


def test_layers_of_one_signature_differ_where_one_is_permitted_more():
    costs = three_layers()
    limited = LimitedCosts(costs, 1.0, least_room=np.array([[0.0], [0.0], [1.0]]))
    assert limited.shape([1]) != limited.shape([2])
    assert not np.isfinite(limited.edge(0, 1, SAME_START)[0][0, 2])
    assert np.isfinite(limited.edge(1, 2, SAME_START)[0][0, 2])

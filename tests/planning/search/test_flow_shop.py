"""Layers and all-reduces as the two machines of a flow shop, by hand; against every assignment in ``test_overlap``."""

import math

import numpy as np
import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.planning.search import flow_shop
from deeppool.planning.search.flow_shop import TooManyLabelsError, fastest_in_sequence
from deeppool.profiling.table import Measurement
from tests.strategies import make_graph, make_profile

SYNC = np.array([[0.0, 0.5], [0.0, 4.0]])
"""Seconds of the all-reduces of both layers, on one GPU and on two."""


def two_layers():
    """On two GPUs a forward pass of 1 s each, and backward passes of 2 s and 3 s; on one GPU three times that."""
    graph = make_graph([(), (0,)])
    passes = [((1.0, 3.0), (2.0, 6.0)), ((1.0, 3.0), (3.0, 9.0))]
    measurements = [
        Measurement(layer.signature, *seconds, (0.0, 0.0)) for layer, seconds in zip(graph.layers, passes, strict=True)
    ]
    link = Link(1e15, 0.0, "by hand")
    return price(make_profile(graph, measurements, (1, 2)), Network(Cluster(2, "by hand", 2, link, link)), 2, (1, 2))


def test_an_all_reduce_hides_behind_the_backward_pass_of_the_layer_before():
    """Both on two GPUs: 1 + 1 forward, 3 backward, 2 backward beside the all-reduce of 4; 2 + 0.5 are left: 9.5 s."""
    options, seconds = fastest_in_sequence(two_layers(), SYNC, [0, 1], None, math.inf)
    assert options == (1, 1)
    assert seconds == pytest.approx(9.5)


def test_an_all_reduce_that_takes_longer_than_it_saves_keeps_its_layer_on_one_gpu():
    """With 20 s in place of 4, the second layer takes 3 + 9 on one GPU, and the first 1 + 2 + 0.5: 15.5 s."""
    options, seconds = fastest_in_sequence(two_layers(), np.array([[0.0, 0.5], [0.0, 20.0]]), [0, 1], None, math.inf)
    assert options == (1, 0)
    assert seconds == pytest.approx(15.5)


def test_no_plan_is_faster_than_the_known_one():
    assert fastest_in_sequence(two_layers(), SYNC, [0, 1], None, 9.5) is None


def test_more_labels_than_allowed_are_given_up(monkeypatch):
    monkeypatch.setattr(flow_shop, "MOST_LABELS", 1)
    with pytest.raises(TooManyLabelsError):
        fastest_in_sequence(two_layers(), SYNC, [0, 1], None, math.inf)


def test_a_search_without_a_way_left_stops(monkeypatch):
    # It went on with no labels: of a layer that reads seven others, over 17 GPU counts, that took 23 GB of memory.
    added = []
    before = flow_shop._before
    monkeypatch.setattr(flow_shop, "_before", lambda *arguments: added.append(arguments) or before(*arguments))
    assert fastest_in_sequence(two_layers(), SYNC, [0, 1], None, 1e-3) is None
    assert len(added) == 1

"""Sums of labels of a model of one block, by hand: exact where all ways are tried, bounds elsewhere."""

from dataclasses import replace

import numpy as np
import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.graph.series_parallel import decompose
from deeppool.planning.search import relaxed_frontier
from deeppool.planning.search.relaxed_frontier import RelaxedSearch
from tests.strategies import make_graph, profile_from_times

EDGES = [(), (0,), (0,), (1, 2)]


def frontier():
    """Fork and join take nothing. Branch 0: 8 ms on one GPU, 5 on two. Branch 1: 4 ms on either. No transfers.

    One after another: 8 + 4 = 12 ms at 12 GPU-ms, 5 + 4 = 9 at 14. Side by side, a GPU each: max(8, 4) = 8 at 12,
    which beats both: the only efficient plan.
    """
    graph = make_graph(EDGES)
    times = [lambda b: 1e-12, lambda b: {4: 8e-3, 2: 5e-3}.get(b, 1.0), lambda b: 4e-3, lambda b: 1e-12]
    link = Link(1e12, 0.0, "by hand")
    cluster = Cluster(2, "by hand", 2, link, link)
    costs = price(profile_from_times(graph, times, (1, 2, 4)), Network(cluster), 4, (1, 2))
    return RelaxedSearch(replace(costs, overlap=False), decompose(EDGES)).frontier()


def test_all_ways_of_a_small_block_are_labels_and_their_sums_are_exact():
    found = frontier()
    assert found.time == pytest.approx([8e-3], rel=1e-6)
    assert found.work == pytest.approx([12e-3], rel=1e-6)
    options, starts = found.plan(0)
    assert options[1:3] == (0, 0)
    assert sorted(starts[1:3]) == [0, 1]


def test_where_not_all_ways_are_tried_sums_are_bounds_and_plans_are_near(monkeypatch):
    monkeypatch.setattr(relaxed_frontier, "MOST_PAIRS", 0)
    found = frontier()
    assert found.time[0] <= 8e-3 * (1 + 1e-6)
    assert found.work[-1] <= 12e-3 * (1 + 1e-6)
    assert found.time[0] == pytest.approx(8e-3, rel=0.01)
    assert found.sums.seconds(found.labels)[0] == pytest.approx(8e-3, rel=1e-6)


def test_searches_at_other_prices_share_the_least_gpu_seconds_of_branches():
    graph = make_graph(EDGES)
    costs = price(
        profile_from_times(graph, [lambda b: 1e-3 * (1 + b)] * 4, (1, 2, 4)), Network(Cluster(4)), 4, (1, 2, 4)
    )
    tree = decompose(EDGES)
    shared = RelaxedSearch(replace(costs, overlap=False), tree)
    for each in (0.5, 1.0, 3.0):
        alone = RelaxedSearch(shared.costs, tree)
        for found, expected in zip(*(search.solver(each).steps(tree) for search in (shared, alone)), strict=True):
            np.testing.assert_allclose(found[0].lower, expected[0].lower, rtol=1e-12)


def test_between_two_plans_the_bound_is_that_of_labels_and_not_the_line_of_their_prices(monkeypatch):
    """After the block a layer takes 10 s on one GPU, 8 s on two and 5 s on four: 10, 16 and 20 GPU-seconds.

    With 15 GPU-seconds no plan takes less than 10 s. The line from (10 s, 10) to (5 s, 20) is at 7.5 s there.
    """
    monkeypatch.setattr(relaxed_frontier, "MOST_PAIRS", 0)
    graph = make_graph([*EDGES, (3,)])
    times = [*[lambda b: 1e-9] * 4, lambda b: {4: 10.0, 2: 8.0, 1: 5.0}[b]]
    link = Link(1e12, 0.0, "by hand")
    costs = price(
        profile_from_times(graph, times, (1, 2, 4)), Network(Cluster(4, "by hand", 4, link, link)), 4, (1, 2, 4)
    )
    tree = decompose([layer.predecessors for layer in graph.layers])
    found = RelaxedSearch(replace(costs, overlap=False), tree).frontier()
    assert found.time[found.work <= 15][0] == pytest.approx(10, rel=2 * relaxed_frontier.GAP)
    assert found.time[found.work <= 18][0] == pytest.approx(8, rel=2 * relaxed_frontier.GAP)

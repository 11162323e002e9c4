"""Exact cost of a block whose fastest branches are not the best together, by hand."""

from dataclasses import replace

import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import SAME_START, Network
from deeppool.costs.table import price
from deeppool.graph.series_parallel import decompose
from deeppool.planning.search import block_evaluation
from deeppool.planning.search.block_evaluation import BlockEvaluation
from deeppool.planning.search.labels import choices_of
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.parallel_block import BlockSolver
from deeppool.planning.search.shortest_path import Budget
from deeppool.profiling.table import Measurement
from tests.strategies import make_graph, make_profile, profile_from_times

BATCHES = (1, 2, 4)


def trading_profile():
    """Two branches between a fork and a join that take nothing, on four GPUs without costs of transfers.

    Branch 0 takes 4 ms forward and 4 backward on one GPU, 1 and 6 on two: its fastest way is the second, 7 ms.
    Branch 1 takes 0 and 4.5 on one GPU, whatever the others do. Side by side: max(1, 0) + max(6, 4.5) = 7 ms.
    """
    seconds = {1: ((4e-3, 4e-3), (1e-3, 6e-3), (1e-3, 6e-3)), 2: ((0.0, 4.5e-3),) * 3}
    graph = make_graph([(), (0,), (0,), (1, 2)])
    measurements = []
    for index, layer in enumerate(graph.layers):
        # Per-GPU batch 4 is one GPU, 2 is two, 1 is four.
        forward, backward = zip(*reversed(seconds.get(index, ((1e-9, 1e-9),) * 3)), strict=True)
        measurements.append(Measurement(layer.signature, forward, backward, (0.0,) * 3))
    return make_profile(graph, measurements, BATCHES)


CLUSTER = Cluster(4, "by hand", 4, Link(1e12, 0.0, "by hand"), Link(1e12, 0.0, "by hand"))


def trading_block():
    """The block of these branches."""
    costs = price(trading_profile(), Network(CLUSTER), 4, (1, 2, 4))
    tree = decompose([layer.predecessors for layer in costs.graph.layers])
    limited = LimitedCosts(replace(costs, overlap=False), None)
    step, _ = BlockSolver(limited).step(tree.blocks[1], 0, 3, ((4, SAME_START),))
    return step.parts[0]


def test_side_by_side_takes_the_longer_pass_of_each():
    block = trading_block()
    found, lower = BlockEvaluation(block, 0, 0, Budget(1000)).best()
    assert found.time == pytest.approx(7e-3, rel=1e-4)
    assert lower == pytest.approx(found.time, rel=1e-9)
    counts = {choice.layer: choice.option for choice in choices_of(found.parts)}
    assert counts[1] == 1, "two GPUs for the branch that gains from them"


def test_without_a_budget_the_best_way_found_has_a_bound():
    found, lower = BlockEvaluation(trading_block(), 0, 0, Budget(0)).best()
    assert lower <= found.time
    assert found.time >= 7e-3


def test_without_a_budget_a_way_is_found_though_the_limit_forbids_the_first_ones(monkeypatch: pytest.MonkeyPatch):
    """Two branches from the data; the join pays for either one's 4 MB, and its limit permits few of them."""
    monkeypatch.setattr(block_evaluation, "MOST_TRIED", 1)
    graph = make_graph([(), (), (0, 1)], input_bytes=[(), (), (2**22,) * 2], parameter_bytes=[0] * 3)
    profile = profile_from_times(graph, [lambda b: 4e-7 + 1e-7 * b, lambda b: 4e-5 + 1e-5 * b, lambda b: 2.5e-3 * b])
    costs = price(profile, Network(Cluster(3, "by hand", 3, Link(3e11, 0.0, "by hand"))), 13, (1, 2, 3))
    tree = decompose([layer.predecessors for layer in graph.layers])
    limited = LimitedCosts(replace(costs, overlap=False), 1.2)
    (step, _), *_ = BlockSolver(limited).steps(tree)
    for last in range(3):
        (found, _), (best, _) = (BlockEvaluation(step.parts[0], 0, last, Budget(most)).best() for most in (0, 1000))
        assert bool(found.parts) == bool(best.parts), last


def test_all_labels_within_a_cap_trade_forward_for_backward():
    """One GPU for branch 0 takes 4 + 4.5 ms side by side, two take 1 + 6: neither beats the other in both."""
    evaluation = BlockEvaluation(trading_block(), 0, 0, Budget(1000))
    labels = evaluation.labels(9e-3)
    passes = sorted((round(forward, 6), round(backward, 6)) for forward, backward in labels.values[:2].T.tolist())
    assert passes == [(1e-3, 6e-3), (4e-3, 4.5e-3)]
    assert len(evaluation.labels(8e-3).plans) == 1

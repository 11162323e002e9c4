"""Steps of blocks and tables of paths, by hand; and groups of GPUs together and alone."""

import random
from dataclasses import replace

import numpy as np
import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import SAME_START, Network
from deeppool.costs.table import price
from deeppool.graph.series_parallel import INPUT, decompose
from deeppool.planning.search.labels import plan_of
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.parallel_block import BlockSolver, BlockStep
from deeppool.planning.search.shortest_path import Budget
from tests.planning.random_problems import random_problem
from tests.strategies import make_graph, profile_from_times


def solver_of(edges, seconds, **options):
    """Two GPUs without costs of transfers; each layer takes its seconds on one GPU as on two."""
    graph = make_graph(edges)
    profile = profile_from_times(graph, [lambda b, each=each: each for each in seconds])
    link = Link(1e12, 0.0, "by hand")
    costs = replace(price(profile, Network(Cluster(2, "by hand", 2, link, link)), 4, (1, 2)), overlap=False)
    return BlockSolver(LimitedCosts(costs, None), **options), decompose(edges)


def test_two_branches_run_side_by_side_on_a_gpu_each():
    """A fork of 1 ms, branches of 10 and 7 ms, a join of 1 ms: 12 ms side by side, 19 one after another."""
    edges, seconds = [(), (0,), (0,), (1, 2)], [1e-3, 10e-3, 7e-3, 1e-3]
    solver, tree = solver_of(edges, seconds)
    found, lower = solver.whole(tree)
    assert found.time == pytest.approx(12e-3)
    assert lower == found.time
    options, starts = plan_of(found.parts)
    assert options[1:3] == (0, 0)
    assert sorted(starts[1:3]) == [0, 1]
    solver, tree = solver_of(edges, seconds, side_by_side=False)
    assert solver.whole(tree)[0].time == pytest.approx(19e-3)


def test_equal_blocks_share_one_step():
    """Two residual blocks of equal layers: evaluated once, in the layers of either."""
    edges = [(), (0,), (0, 1), (2,), (2, 3)]
    graph = make_graph(edges)
    layers = tuple(replace(layer, signature="same", parameters=()) for layer in graph.layers)
    graph = replace(graph, layers=layers)
    profile = profile_from_times(graph, [lambda b: 1e-3] * 5)
    costs = replace(price(profile, Network(Cluster(2)), 4, (1, 2)), overlap=False)
    solver = BlockSolver(LimitedCosts(costs, None))
    (first, offset), (second, further) = [
        item for item in solver.steps(decompose(edges)) if isinstance(item[0], BlockStep)
    ]
    assert first is second
    assert further - offset == 2
    found, _ = solver.whole(decompose(edges))
    assert len(plan_of(found.parts)[0]) == 5


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["branches", "nested", "tails"])
@pytest.mark.parametrize("limit", [None, 2.0])
def test_groups_whose_branches_are_priced_together_have_the_bounds_of_each_alone(shape, limit):
    compared = 0
    for number in range(40):
        problem = random_problem(random.Random(f"groups {shape} {number}"), 9, 12, shape=shape)
        counts = tuple(range(1, problem.cluster.gpus + 1))
        graph = problem.profile.graph
        costs = replace(price(problem.profile, Network(problem.cluster), problem.global_batch, counts), overlap=False)
        tree = decompose([layer.predecessors for layer in graph.layers])
        slots = [(width, SAME_START) for width in (1, *range(2, problem.cluster.gpus + 1, 3))]
        for position, block in enumerate(tree.blocks):
            if block is None:
                continue
            ends = tree.layers[position - 1] if position else INPUT, tree.layers[position]
            together, _ = BlockSolver(LimitedCosts(costs, limit)).step(block, *ends, (*slots, slots[0]))
            for slot, part in zip([*slots, slots[0]], together.parts, strict=True):
                (alone,) = BlockSolver(LimitedCosts(costs, limit)).step(block, *ends, (slot,))[0].parts
                assert np.array_equal(part.lower, alone.lower)
                assert np.array_equal(part.guess, alone.guess)
                assert all(np.array_equal(part.least_of(number), alone.least_of(number)) for number in range(3))
                compared += 1
    assert compared > 40


class KnownPart:
    """A block of one group of GPUs with known bounds."""

    exact = True

    def __init__(self, lower):
        self.lower = self.guess = np.array(lower)


def test_an_evaluated_way_replaces_its_bound_and_a_gap_stays_visible():
    """Bound 3 s, evaluated 5 s of which 4 are proved: the search reckons with 5, nothing beats 4."""
    step = BlockStep([KnownPart([[3.0, 1.0]])], Budget(0))
    step.exact, step.guess = True, step.lower
    step._learn((0, 0, 0), 5.0, 4.0)
    assert step.version == 1
    assert step.guess[0].tolist() == [[5.0, 1.0]]
    assert step.lower[0].tolist() == [[4.0, 1.0]]
    step._learn((0, 0, 1), 1.0, 1.0)
    assert step.version == 1, "as expected: no path has to be lengthened"

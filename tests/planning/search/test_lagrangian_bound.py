"""Seconds + price x GPU-seconds: a bound for every assignment of GPUs, and the least of a chain."""

import random

import numpy as np
import pytest

from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.planning.search.lagrangian_bound import LagrangianBound
from tests.planning.random_problems import SHAPES, random_problem
from tests.planning.search.test_frontier import all_assignments
from tests.planning.search.test_search import Definition
from tests.strategies import make_graph, profile_from_times

PRICES = (0.0, 0.01, 0.1, 0.3, 1.0, 10.0)


def definition_and_costs(problem):
    definition = Definition(problem.profile, problem.cluster, problem.global_batch)
    counts = tuple(definition.gpu_counts)
    return definition, price(problem.profile, Network(problem.cluster), problem.global_batch, counts)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_assignment_is_better_than_its_bound(shape):
    for number in range(25):
        rng = random.Random(f"{shape} {number}")
        problem = random_problem(rng, *rng.choice([(5, 4), (7, 2), (4, 6)]), most_per_node=4, shape=shape)
        definition, costs = definition_and_costs(problem)
        times, work = np.array(all_assignments(definition)).T
        for each in PRICES:
            best = float((times + each * work).min())
            bound = LagrangianBound(costs, each).least(definition.tree)
            assert bound <= best * (1 + 1e-12)
            # Whatever is ignored, the bound is one: each layer's best GPU count, with no transfers at all.
            alone = (costs.compute + costs.sync) * each * np.array(costs.gpu_counts)
            assert bound >= alone.min(axis=1).sum() * (1 - 1e-12)
            if shape == "chain":
                assert bound == pytest.approx(best, rel=1e-12)


def test_a_block_takes_as_long_as_its_slowest_branch_and_the_work_of_all():
    """Nothing is moved. Fork and join take 1 ms on any count, the branches 8 and 16 ms on one GPU, half on two.

    At a price p of a GPU-second, on one GPU: fork and join 2 (1 + p); the slowest branch takes 16 ms on one
    GPU or 8 ms on two, and the work, 24 GPU-ms, is the same on both.
    """
    graph = make_graph([(), (0,), (0,), (1, 2)])
    times = [lambda b: 1e-3, lambda b: 0.5e-3 * b, lambda b: 1e-3 * b, lambda b: 1e-3]
    costs = price(profile_from_times(graph, times), Network(Cluster(2)), 16, (1, 2))
    definition = Definition(profile_from_times(graph, times), Cluster(2), 16)
    for each in (0.0, 0.5, 2.0):
        # A transfer of no bytes takes two latencies of 5 us, so all layers share one count, or pay for it.
        one = 2e-3 * (1 + each) + 16e-3 + 24e-3 * each
        two = 2e-3 * (1 + 2 * each) + 8e-3 + 24e-3 * each
        mixed = 2e-3 * (1 + each) + 8e-3 + 24e-3 * each
        bound = LagrangianBound(costs, each).least(definition.tree)
        assert mixed * (1 - 1e-12) <= bound <= min(one, two) * (1 + 1e-12)
    assert LagrangianBound(costs, 0.0).least(definition.tree) == pytest.approx(10e-3)

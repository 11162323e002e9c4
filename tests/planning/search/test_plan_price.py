"""The price of a given plan: by hand, and against what searches pay for the plans that they find."""

import random
from dataclasses import replace

import numpy as np
import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import Network, default_model
from deeppool.costs.table import price
from deeppool.graph.series_parallel import decompose
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.request import gpu_counts_to_search
from deeppool.planning.search.labels import plan_of
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.overlap import relaxed_costs
from deeppool.planning.search.parallel_block import BlockSolver
from deeppool.planning.search.plan_price import price_of
from deeppool.profiling.table import Measurement
from tests.planning.random_problems import random_problem
from tests.strategies import make_graph, make_profile


def test_branches_side_by_side_take_the_longer_one_and_all_gpu_seconds():
    """Forward 1 + max(2, 3) + 1, backward twice that, GPU-seconds 3 x (1 + 2 + 3 + 1) at half a second each."""
    seconds = (1.0, 2.0, 3.0, 1.0)
    measurements = [Measurement(f"signature{i}", (x,) * 2, (2 * x,) * 2, (0.0,) * 2) for i, x in enumerate(seconds)]
    free = Link(1e15, 0.0, "made by hand")
    profile = make_profile(make_graph([(), (0,), (0,), (1, 2)]), measurements, (1, 2))
    cluster = Cluster(2, "made by hand", 2, free, free)
    costs = replace(price(profile, Network(cluster, default_model(cluster)), 1, (1,)), overlap=False)
    plan = Placement(costs, (0,) * 4, (0, 0, 1, 0))
    assert price_of(plan, LimitedCosts(costs, None)) == pytest.approx(5 + 10)
    assert price_of(plan, LimitedCosts(costs, None, work_price=0.5)) == pytest.approx(5 + 10 + 0.5 * 3 * 7)
    extra = np.array([[0.0], [10.0], [0.0], [4.0]])
    assert price_of(plan, LimitedCosts(costs, None, extra)) == pytest.approx(1 + 3 + 1 + max(4 + 10, 6) + 2 + 2 + 4)


@pytest.mark.parametrize("seed", range(60))
def test_a_search_pays_that_price_for_the_plan_that_it_finds(seed):
    rng = random.Random(seed)
    drawn = random_problem(rng, rng.randint(4, 14), 16)
    network = Network(drawn.cluster, default_model(drawn.cluster))
    counts = gpu_counts_to_search(drawn.cluster.gpus, drawn.global_batch)
    costs = price(drawn.profile, network, drawn.global_batch, counts)
    tree = decompose([layer.predecessors for layer in costs.graph.layers])
    limit, share, work_price = rng.choice([None, 1.5, 3.0]), rng.choice([0.0, 0.5]), rng.choice([0.0, 0.1])
    prices = relaxed_costs(costs, tree, limit, share, work_price)
    found, _ = BlockSolver(prices).whole(tree)
    assert price_of(Placement(costs, *plan_of(found.parts)), prices) == pytest.approx(found.time)

"""The search and the frontier on graphs with too many assignments to try, against ``label_reference``."""

import random

import numpy as np
import pytest

from deeppool.graph.series_parallel import ParallelBlock, parts_of
from deeppool.planning.search.optimality import optimality_factor
from tests.planning.random_problems import random_problem
from tests.planning.search.label_reference import LabelReference
from tests.planning.search.test_search import Definition
from tests.planning.searched import frontier, plan
from tests.sampling import STRESS

GRAPHS = 300 if STRESS else 12
LIMITS = (None, 1.5, 3.0)
MOST_BRANCHES = 3
ROUNDING = 1e-9


def larger_problems():
    """Yields problems of 8 to 24 layers, as the arguments of a plan, with their costs by definition."""
    for number in range(GRAPHS):
        rng = random.Random(f"larger {number}")
        which, shape = rng.choice(["powers", "all"]), rng.choice(["chain", "branches", "nested", "tails"])
        problem = random_problem(rng, rng.randint(8, 24), rng.choice([3, 4, 6]), rng.choice([2, 4, 8]), shape)
        request = problem.profile, problem.cluster, problem.global_batch
        definition = Definition(*request, which)
        blocks = [part for part in parts_of(definition.tree) if isinstance(part, ParallelBlock)]
        if all(len(block.branches) <= MOST_BRANCHES for block in blocks):
            yield request, which, definition


@pytest.mark.timeout(3600)
def test_no_plan_of_a_larger_graph_is_above_its_bound():
    exact = 0
    for request, which, definition in larger_problems():
        for limit in LIMITS:
            ((least, _),) = LabelReference(definition, limit).points()
            made = plan(*request, limit, gpu_counts=which)
            assert least * (1 - ROUNDING) <= made.iteration_time
            assert made.iteration_time <= least * optimality_factor(made.optimality) * (1 + ROUNDING)
            exact += made.optimality == "exact"
    assert exact > GRAPHS


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_point_of_a_larger_frontier_is_above_its_bound():
    for request, which, definition in larger_problems():
        if len(definition.layers) > 14 and not STRESS:
            continue
        found = frontier(*request, gpu_counts=which)
        points = np.array([(point.iteration_time, point.gpu_seconds) for point in found.points])
        least = np.array(LabelReference(definition, frontier=True).points())
        assert (fastest_within(least, points[:, 1]) <= points[:, 0] * (1 + ROUNDING)).all()
        most = least[:, 0] * optimality_factor(found.optimality) * (1 + ROUNDING)
        assert (fastest_within(points, least[:, 1]) <= most).all()
        in_both = (points[:, None] / least).max(axis=2).min(axis=0)
        assert (in_both <= found.pareto_factor * (1 + ROUNDING)).all()


def fastest_within(points, work):
    """Per budget of GPU-seconds the least time of the points that keep it."""
    keeps = points[:, 1] <= work[:, None] * (1 + ROUNDING)
    return np.where(keeps, points[:, 0], np.inf).min(axis=1)

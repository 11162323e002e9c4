"""Efficient plans whose all-reduces overlap, against every assignment of GPUs timed event by event."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.cluster.cluster import Cluster, Link
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.planner import frontier, plan
from deeppool.planning.request import cost_table
from deeppool.planning.search import relaxed_frontier
from deeppool.planning.search.efficient_plans import efficient_plans
from deeppool.planning.search.optimality import optimality_factor
from tests.planning.evaluate.iteration_events import iteration_with_overlap
from tests.planning.search.test_search import ROUNDING, Definition
from tests.planning.searched import buckets_of
from tests.sampling import examples
from tests.strategies import (
    computing_problems,
    contested_problems,
    make_graph,
    problems,
    profile_from_times,
    series_parallel_graphs,
    tangled_graphs,
)

GRAPHS = st.one_of(series_parallel_graphs(max_layers=5), tangled_graphs(max_layers=5))
PROBLEMS = st.one_of(
    problems(GRAPHS, gpus=(1, 2, 3, 4)), contested_problems(GRAPHS), computing_problems(GRAPHS, gpus=(2, 3, 4))
)
BUDGETS = (1.0, 1.3, 2.0)


def costs_of(profile, cluster, batch):
    return cost_table(profile, cluster, batch)


def every_plan(problem, buckets=None):
    """Returns (iteration time, GPU-seconds) of every assignment, one a row; by default in the buckets of a search."""
    costs = costs_of(*problem)
    costs = replace(costs, buckets=buckets or costs.buckets)
    definition, found = Definition(*problem).with_buckets(costs.buckets), []
    for assignment in definition.assignments(definition.tree, 0, definition.cluster.gpus):
        places = [place for _, place in sorted(assignment)]
        options = tuple(costs.gpu_counts.index(count) for count, _ in places)
        placed = Placement(costs, options, tuple(start for _, start in places))
        found.append((iteration_with_overlap(definition, places)[0], placed.gpu_seconds))
    return np.array(found)


def check_frontier(problem):
    """Checks that points are plans, and that the factor holds for plans with the GPU-seconds of a point or more."""
    found, every = frontier(*problem), every_plan(problem)
    points = np.array([(point.iteration_time, point.gpu_seconds) for point in found.points])
    for point in points:
        assert np.isclose(every, point, rtol=ROUNDING).all(axis=1).any(), "no plan is what the point says"
    assert (np.diff(points[:, 0]) > 0).all()
    assert (np.diff(points[:, 1]) < 0).all()
    for time, work in every:
        within = points[points[:, 1] <= work * (1 + ROUNDING), 0]
        assert within.min(initial=math.inf) <= time * optimality_factor(found.optimality) * (1 + ROUNDING) or not len(
            within
        )
    assert shortfall_in_both(points, every) <= found.pareto_factor * (1 + ROUNDING)
    return found


def shortfall_in_both(points, every):
    """Least factor within which each plan has a point, in both numbers."""
    return max(min(max(point[0] / time, point[1] / work) for point in points) for time, work in every)


def test_no_plan_is_bounded_below_the_fastest_one_where_all_reduces_decide():
    """Two layers take 8 ms on one GPU; on two they take 4, and sum gradients for 10, of which little is hidden."""
    graph = make_graph([(), (0,)], [(), (0,)], [5 * 10**6, 5 * 10**6])
    link = Link(1e9, 0.0, "by hand")
    problem = profile_from_times(graph, [lambda b: 1e-3 * b] * 2, (1, 2, 4)), Cluster(2, "by hand", 2, link, link), 4
    found = efficient_plans(costs_of(*problem))
    assert found.relaxed.time[0] < found.fastest * (1 - 1e-3)
    assert found.bound(math.inf) == found.corners()[0].min() == found.fastest


@pytest.mark.slow
@examples(60)
@given(PROBLEMS)
def test_no_plan_is_faster_than_the_frontier_by_more_than_its_factor(problem):
    found = check_frontier(problem)
    made = plan(*problem)
    # Data parallelism may be faster in buckets that are not searched.
    assert found.points[0].iteration_time <= made.iteration_time * (1 + ROUNDING) or made.buckets != buckets_of(problem)


@examples(60)
@given(PROBLEMS)
def test_the_factor_holds_where_only_some_prices_are_tried(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relaxed_frontier, "MOST_PAIRS", 0)
        check_frontier(problem)


@examples(60)
@given(PROBLEMS)
def test_a_budget_of_gpu_seconds_buys_a_plan_within_its_factor_of_the_fastest(problem):
    every = every_plan(problem)
    for limit in BUDGETS:
        made = plan(*problem, limit, limit_scope="iteration")
        budget = limit * made.single_gpu_iteration_time * (1 + ROUNDING)
        assert made.gpu_seconds <= budget
        best = every[every[:, 1] <= budget, 0].min()
        assert best * (1 - ROUNDING) <= made.iteration_time or made.buckets != buckets_of(problem)
        assert made.iteration_time <= best * optimality_factor(made.optimality) * (1 + ROUNDING)


@examples(60)
@given(PROBLEMS)
def test_no_plan_takes_less_than_the_bound_of_its_gpu_seconds(problem):
    found = efficient_plans(costs_of(*problem))
    for time, work in every_plan(problem):
        assert found.bound(work) <= time * (1 + ROUNDING)
        assert found.least_work(time) <= work * (1 + ROUNDING)


def test_one_layer_that_scales_badly_has_a_point_for_each_gpu_count():
    """9 ms on one GPU, 7.5 on two, 6 on four, no gradients: 9, 15 and 24 GPU-ms, of which none beats another one."""
    profile = profile_from_times(make_graph([()], parameter_bytes=[0]), [lambda b: 3e-3 + 1.5e-3 * math.log2(b)])
    found = frontier(profile, Cluster(4), 16)
    assert [point.gpu_counts for point in found.points] == [(4,), (2,), (1,)]
    assert found.optimality == "exact"


def test_rounding_raises_no_bound_above_the_plan_of_fewest_gpu_seconds():
    """A region in which every layer takes 1 ms on any number of GPUs: one GPU is best in both numbers."""
    profile = profile_from_times(make_graph([(), (0,), (0, 1), (1, 2)]), [lambda b: 1e-3] * 4)
    link = Link(bandwidth=5e8, latency=0.0, source="drawn")
    found = efficient_plans(costs_of(profile, Cluster(2, inside=link, between=link), 8))
    assert found.work.tolist() == [pytest.approx(4e-3)]
    assert found.bound(4e-3) <= 4e-3 * (1 + ROUNDING)
    assert found.least_work(4e-3) <= 4e-3 * (1 + ROUNDING)


def test_branches_side_by_side_share_the_update():
    """Two branches of 2 s that no GPU count makes faster, and of 1 GB each, which a GPU updates in 1 s.

    Side by side the pass takes 1 + 2 + 1 s and the update 1 s; one after the other 1 + 4 + 1 s and 2 s.
    """
    graph = make_graph([(), (0,), (0,), (1, 2)], parameter_bytes=[0, 10**9, 10**9, 0])
    profile = profile_from_times(graph, [lambda b: 1.0, lambda b: 2.0, lambda b: 2.0, lambda b: 1.0])
    problem = replace(profile, update_per_byte=1e-9), Cluster(2), 2
    found = plan(*problem)
    totals = found.iteration_time, found.update_time, found.gpu_seconds
    assert totals == pytest.approx((5, 1, 1 + 2 + 2 + 1 + 2), abs=1e-3)
    check_frontier(problem)
    found = efficient_plans(costs_of(*problem))
    assert all(found.bound(work) <= time * (1 + ROUNDING) for time, work in every_plan(problem))

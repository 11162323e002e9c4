"""Every efficient plan, against all assignments there are."""

import math
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base import serialization
from deeppool.base.cancellation import Cancellation
from deeppool.cluster.cluster import Cluster
from deeppool.errors import PlanError, RunCancelledError
from deeppool.planning.search import relaxed_frontier
from deeppool.planning.search.frontier import Frontier
from tests.planning.random_problems import random_problem
from tests.planning.search.test_search import Definition
from tests.planning.searched import frontier, plan
from tests.sampling import examples
from tests.strategies import make_graph, problems, profile_from_times, series_parallel_graphs, tangled_graphs

ROUNDING = 1e-9


def all_assignments(definition: Definition) -> list[tuple[float, float]]:
    """(iteration time, GPU-seconds) of every assignment of GPUs to layers."""
    found = []
    for assignment in definition.assignments(definition.tree, 0, definition.cluster.gpus):
        places = [place for _, place in sorted(assignment)]
        found.append((definition.iteration_time(places), work_of(definition, places)))
    return found


def work_of(definition, places) -> float:
    return sum(time * count for time, (count, _) in zip(definition.times(places), places, strict=True))


def factor(optimality: str) -> float:
    return 1.0 if optimality == "exact" else float(optimality.removeprefix("bound "))


@examples(80)
@given(problems(st.one_of(series_parallel_graphs(max_layers=5), tangled_graphs(max_layers=5))))
def test_no_assignment_beats_the_frontier(problem):
    found = frontier(*problem)
    for time, work in all_assignments(Definition(*problem)):
        rivals = [point for point in found.points if point.gpu_seconds <= work * (1 + ROUNDING)]
        assert rivals, "the frontier ends before the least GPU-seconds"
        assert min(point.iteration_time for point in rivals) <= time * factor(found.optimality) * (1 + ROUNDING)


@examples(80)
@given(problems(st.one_of(series_parallel_graphs(max_layers=5), tangled_graphs(max_layers=5))))
def test_every_point_is_what_its_gpu_counts_cost(problem):
    definition = Definition(*problem)
    found = frontier(*problem)
    for point in found.points:
        places = list(zip(point.gpu_counts, point.first_gpus, strict=True))
        assert point.iteration_time == pytest.approx(definition.iteration_time(places), rel=1e-9)
        work = work_of(definition, places)
        assert point.gpu_seconds == pytest.approx(work, rel=1e-9)
        assert point.amplification == pytest.approx(work / found.single_gpu_iteration_time, rel=1e-9)
    assert [point.iteration_time for point in found.points] == sorted(point.iteration_time for point in found.points)


@pytest.mark.parametrize(
    ("optimality", "factor", "claim"),
    [
        ("exact", 1.0, "exact"),
        ("exact", None, "exact"),
        ("exact", 1.0098, "exact in time, 1.010 in time and GPU-seconds"),
        ("bound 1.200", 1.0, "bound 1.200 in time, 1.000 in time and GPU-seconds"),
    ],
)
def test_what_is_proved_in_time_alone_is_not_called_exact_in_gpu_seconds(optimality, factor, claim):
    profile = profile_from_times(make_graph([()]), [lambda b: 1e-3 * b])
    found = replace(frontier(profile, Cluster(2), 16), optimality=optimality, pareto_factor=factor)
    assert found.claim == claim
    assert str(found).endswith(claim)


def test_a_limit_below_every_point_names_the_least():
    profile = profile_from_times(make_graph([()], parameter_bytes=[0]), [lambda b: 1e-3 + 1e-4 * b])
    found = frontier(profile, Cluster(2), 16)
    least = found.points[-1]
    assert found.within(least.amplification) == least
    for limit in (0.5, 0.0, math.nan):
        with pytest.raises(PlanError, match=rf"within amplification {limit:g}: the least is {least.amplification:g}, "):
            found.within(limit)


@pytest.mark.slow
@examples(40)
@given(problems(series_parallel_graphs(max_layers=5)))
def test_global_limit_buys_the_fastest_plan_within_it(problem):
    assignments = all_assignments(Definition(*problem))
    for limit in (1.0, 1.3, 2.0, None):
        made = plan(*problem, limit, limit_scope="iteration")
        budget = np.inf if limit is None else limit * made.single_gpu_iteration_time * (1 + ROUNDING)
        best = min(time for time, work in assignments if work <= budget)
        assert made.amplification <= (np.inf if limit is None else limit * (1 + ROUNDING))
        assert best * (1 - ROUNDING) <= made.iteration_time <= best * factor(made.optimality) * (1 + ROUNDING)


@examples(30)
@given(problems(series_parallel_graphs(max_layers=8)))
def test_the_fastest_point_is_the_best_plan_of_all(problem):
    assert frontier(*problem).points[0].iteration_time == pytest.approx(plan(*problem).iteration_time, rel=1e-9)


@cache
def assignments_of(shape, number):
    """A small problem, and (seconds, GPU-seconds) of every assignment."""
    problem = small_problem(shape, number)
    definition = Definition(problem.profile, problem.cluster, problem.global_batch)
    return problem, definition, np.array(all_assignments(definition))


def points_and_assignments(shape, number):
    """(seconds, GPU-seconds) of a frontier and of every assignment."""
    problem, definition, assignments = assignments_of(shape, number)
    found = frontier(problem.profile, problem.cluster, problem.global_batch)
    points = [(point.iteration_time, point.gpu_seconds) for point in found.points]
    for point, (time, work) in zip(found.points, points, strict=True):
        places = list(zip(point.gpu_counts, point.first_gpus, strict=True))
        assert time == pytest.approx(definition.iteration_time(places), rel=1e-9)
        assert work == pytest.approx(work_of(definition, places), rel=1e-9)
    assert points == sorted(points)
    assert [work for _, work in points] == sorted((work for _, work in points), reverse=True)
    return found, np.array(points), assignments


def small_problem(shape, number):
    rng = random.Random(f"frontier {shape} {number}")
    problem = random_problem(rng, *rng.choice([(6, 4), (5, 7), (7, 4), (4, 8)]), most_per_node=4, shape=shape)
    if number % 2:
        return problem
    # Layers that run forward or backward, hardly ever both: side by side each pass counts by itself.
    none = (0.0,) * len(problem.profile.batch_sizes)
    measurements = tuple(
        replace(measurement, backward=measurement.forward, forward=none)
        if rng.random() < 0.5
        else replace(measurement, backward=none)
        for measurement in problem.profile.measurements
    )
    return replace(problem, profile=replace(problem.profile, measurements=measurements))


def shortfall(points, assignments):
    """Largest ratio of the fastest point's time, with no more GPU-seconds, to an assignment's time."""
    worst = 0.0
    for time, work in assignments:
        worst = max(worst, points[points[:, 1] <= work * (1 + ROUNDING), 0].min() / time)
    return worst


def shortfall_in_both(points, assignments):
    """Least factor within which each assignment has a point, in both numbers."""
    ratios = points[:, None] / assignments
    return ratios.max(axis=2).min(axis=0).max()


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["branches", "nested", "tails"])
def test_frontier_with_branches_is_every_efficient_assignment(shape):
    beside = 0
    for number in range(30):
        found, points, assignments = points_and_assignments(shape, number)
        assert found.optimality == "exact"
        assert shortfall(points, assignments) <= 1 + ROUNDING
        # Nor is there a point that an assignment beats in both.
        for time, work in points:
            better = (assignments < np.array([time, work]) * (1 - ROUNDING)).all(axis=1)
            assert not better.any()
        beside += any(any(point.first_gpus) for point in found.points)
    assert beside, "no efficient plan ran branches side by side"


@pytest.mark.slow
@pytest.mark.parametrize(("most", "ratio"), [(1000, 2.0), (5, 30.0)])
def test_a_frontier_of_bounds_states_its_factor(most, ratio, monkeypatch):
    monkeypatch.setattr(relaxed_frontier, "MOST_PAIRS", 0)
    monkeypatch.setattr(relaxed_frontier, "MOST_BOUNDS", most)
    monkeypatch.setattr(relaxed_frontier, "MOST_ROUGH", most)
    monkeypatch.setattr(relaxed_frontier, "RATIO", ratio)
    falls_short = 0
    for number in range(15):
        for shape in ("branches", "nested", "tails"):
            found, points, assignments = points_and_assignments(shape, number)
            worst = shortfall(points, assignments)
            assert worst <= factor(found.optimality) * (1 + ROUNDING)
            assert shortfall_in_both(points, assignments) <= found.pareto_factor * (1 + ROUNDING)
            falls_short += worst > 1 + ROUNDING
    assert falls_short, "every efficient plan was found"


def two_layers():
    graph = make_graph([(), (0,)])
    return profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 1e-3 + 1e-4 * b]), Cluster(8), 16


def test_a_global_limit_lets_one_layer_spend_what_the_other_saves():
    # The first layer scales perfectly; the second hardly at all, and no limit per layer below 5 lets it take 8 GPUs.
    strict, shared = plan(*two_layers(), 1.5), plan(*two_layers(), 1.5, limit_scope="iteration")
    assert shared.iteration_time < strict.iteration_time
    assert max(layer.amplification for layer in shared.layers) > 1.5 >= shared.amplification


def test_any_point_of_the_frontier_is_a_plan():
    found = frontier(*two_layers())
    for point in found.points:
        made = plan(*two_layers(), max(1.0, point.amplification), limit_scope="iteration")
        assert made.iteration_time <= point.iteration_time * (1 + ROUNDING)
        assert found.within(max(1.0, point.amplification)).iteration_time == pytest.approx(made.iteration_time)


def test_frontier_read_back_is_the_frontier_written(tmp_path):
    found = frontier(*two_layers())
    assert serialization.read(serialization.write(found, tmp_path / "frontier.json"), Frontier) == found


def test_a_frontier_states_the_uncertainty_of_its_times():
    profile, cluster, _ = two_layers()
    sure, beyond = frontier(profile, cluster, 16), frontier(profile, cluster, 64)
    assert sure.caveats == ()
    assert "caution" not in str(sure)
    assert [sentence[:31] for sentence in beyond.caveats] == ["the times of 2 layers (layer0 …"]
    assert str(beyond).endswith(f"; caution: {beyond.caveats[0]}")


@examples(30)
@given(problems(gpus=(2, 4, 8)))
def test_data_parallelism_on_fewer_gpus_takes_what_it_takes_on_a_cluster_of_so_many(problem):
    profile, cluster, batch = problem
    found = frontier(profile, cluster, batch)
    compared = found.comparison.data_parallel
    assert compared[0].gpus == 1
    assert compared[-1].gpus == cluster.gpus
    for one in compared:
        alone = frontier(profile, replace(cluster, gpus=one.gpus), batch)
        assert one.seconds == pytest.approx(alone.data_parallel_iteration_time)
    assert compared[-1].gpu_seconds == pytest.approx(cluster.gpus * found.data_parallel_iteration_time)


@pytest.mark.slow
def test_a_long_search_ends_where_it_is_cancelled():
    problem = random_problem(random.Random(0), 30, 8, shape="branches")
    profile, cluster, batch = problem.profile, problem.cluster, problem.global_batch
    cancellation = Cancellation()
    cancellation.request()
    with cancellation.applied(), pytest.raises(RunCancelledError):
        frontier(profile, cluster, batch)
    assert frontier(profile, cluster, batch).points

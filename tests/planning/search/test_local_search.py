"""Local search of regions that are not series-parallel, against every assignment."""

import itertools
import random

import numpy as np
import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import SAME_START, Network
from deeppool.costs.table import price
from deeppool.graph.series_parallel import NonSeriesParallel, decompose
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search import parallel_block
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.local_search import MOST_ENTRIES, LocalSearch
from deeppool.planning.search.search import search_partitions
from tests.planning.random_problems import random_problem
from tests.planning.search.test_search import Definition
from tests.strategies import make_graph, profile_from_times

ROUNDING = 1e-12


def region_search(profile, cluster, batch, limit, most_entries=MOST_ENTRIES):
    """Returns the definitions and the search of the first irregular region of a graph, between its fork and join."""
    definition = Definition(profile, cluster, batch)
    costs = price(profile, Network(cluster), batch, tuple(definition.gpu_counts))
    tree = definition.tree
    position = next(index for index, part in enumerate(tree.blocks) if isinstance(part, NonSeriesParallel))
    region, join = tree.blocks[position], tree.layers[position]
    fork = tree.layers[position - 1] if position else -1
    return definition, LocalSearch(
        LimitedCosts(costs, limit), region, fork, join, SAME_START, np.zeros(len(costs.gpu_counts)), most_entries
    )


def best_choices(definition, found, limit):
    """(counts of fork and join) → (time, choices) of the best assignment of the region within the limit."""
    *inner, join = found.layers
    fork = found.fork
    best = {}
    rows = range(1 if fork < 0 else len(definition.gpu_counts))
    options = range(len(definition.gpu_counts))
    for before, after in itertools.product(rows, options):
        ends = before, after
        best[ends] = np.inf
        for chosen in itertools.product(options, repeat=len(inner)):
            seconds = seconds_of(definition, {fork: before, join: after, **dict(zip(inner, chosen, strict=True))})
            if all(
                limit is None or time * count <= limit * definition.compute(layer, 1) * (1 + 1e-9)
                for layer, time, count in seconds
            ):
                best[ends] = min(best[ends], sum(time for _, time, _ in seconds))
    return best


def seconds_of(definition, options):
    """(layer, seconds, GPUs) of each layer but the fork."""
    counts = definition.gpu_counts
    places = [(counts[options.get(layer, 0)], 0) for layer in range(len(definition.layers))]
    layers = list(options)[1:]
    return [(layer, definition._time(layer, places)[0], counts[options[layer]]) for layer in sorted(layers)]


def irregular_problems(count):
    """Yields small problems with an irregular region between two cuts."""
    number = 0
    while count:
        number += 1
        rng = random.Random(f"knot {number}")
        problem = random_problem(rng, rng.choice([5, 6]), 4, shape="irregular")
        tree = decompose([layer.predecessors for layer in problem.profile.graph.layers])
        if any(isinstance(part, NonSeriesParallel) for part in tree.blocks) and problem.cluster.gpus > 1:
            count -= 1
            yield problem.profile, problem.cluster, problem.global_batch


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1.0, 1.5, 4.0])
def test_a_region_whose_tables_stay_small_is_solved_exactly(limit):
    for problem in irregular_problems(60):
        definition, found = region_search(*problem, limit)
        for (before, after), best in best_choices(definition, found, limit).items():
            found_plan, lower = found.settle(before, after)
            assert lower == pytest.approx(best, rel=ROUNDING)
            assert found_plan.time == pytest.approx(best, rel=ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1.0, 1.5, 4.0])
def test_region_is_never_below_its_bound_nor_better_than_the_best(limit):
    gaps = []
    for problem in irregular_problems(60):
        definition, found = region_search(*problem, limit, most_entries=8)
        uniform = found.guess.copy()
        for (before, after), best in best_choices(definition, found, limit).items():
            assert found.lower[before, after] <= best * (1 + ROUNDING)
            found_plan, lower = found.settle(before, after)
            assert lower <= best * (1 + ROUNDING)
            assert lower <= found_plan.time
            assert found_plan.time >= best * (1 - ROUNDING)
            assert found_plan.time <= uniform[before, after] * (1 + ROUNDING)
            if found_plan.time < np.inf:
                check_partial_plan(definition, found, found_plan, before, limit)
                gaps.append(found_plan.time / best)
    assert np.mean(np.array(gaps) < 1 + 1e-9) > 0.95, "the local search finds the best one mostly"


def check_partial_plan(definition, found, found_plan, before, limit):
    """Checks that a partial plan takes the time that its choices cost, forward and backward, and keeps the limit."""
    options = {found.fork: before, **{choice.layer: choice.option for choice in found_plan.parts}}
    assert set(options) == {found.fork, *found.layers}
    seconds = seconds_of(definition, options)
    assert found_plan.time == pytest.approx(sum(time for _, time, _ in seconds), rel=1e-12)
    counts = definition.gpu_counts
    places = [(counts[options.get(layer, 0)], 0) for layer in range(len(definition.layers))]
    forward = sum(definition._time(layer, places)[1] for layer in found.layers)
    assert found_plan.forward == pytest.approx(forward, rel=1e-12)
    for layer, time, count in seconds:
        assert limit is None or time * count <= limit * definition.compute(layer, 1) * (1 + 1e-9)


def test_layers_of_a_region_may_differ_in_their_counts():
    """Layers 1 and 3 split perfectly, 2 takes 10 ms on one GPU and synchronises for 1 s on two; nothing is moved.

    On one count: 16 + 10 + 16 + 1 ms on one GPU, or 1 s and more on two. The best is two GPUs for layers 1 and
    3 only: 8 + 10 + 8 + 1 ms. Every layer but the first reads all before it, so that no branches describe it.
    """
    link = Link(1e9, 0.0, "made by hand")
    graph = make_graph([(), (0,), (0, 1), (0, 1, 2), (1, 2, 3)], None, [0, 0, 10**9, 0, 0])
    times = [lambda b: 1e-3, lambda b: 1e-3 * b, lambda b: 10e-3, lambda b: 1e-3 * b, lambda b: 1e-3]
    problem = profile_from_times(graph, times), Cluster(2, "made by hand", 2, link, link), 16
    _, found = region_search(*problem, None)
    assert found.guess[0, 0] == pytest.approx(27e-3)
    found_plan, lower = found.settle(0, 0)
    assert found_plan.time == pytest.approx(27e-3)
    assert [choice.option for choice in found_plan.parts] == [1, 0, 1, 0]
    # Nothing costs a transfer, so the bound is reached.
    assert lower == pytest.approx(27e-3)


def test_partitions_for_given_counts_keep_these_in_a_region_whose_tables_are_divided(monkeypatch):
    """Nothing is found for a region there, in which only equal counts are looked for: it ended in an overflow."""
    monkeypatch.setattr(parallel_block, "MOST_ENTRIES", 1)
    rng = random.Random(1)
    for profile, cluster, batch in irregular_problems(20):
        costs = price(profile, Network(cluster), batch, tuple(Definition(profile, cluster, batch).gpu_counts))
        choices = tuple(rng.randrange(len(costs.gpu_counts)) for _ in profile.graph.layers)
        found = search_partitions(costs, choices, 1.5)
        assert found.choices == choices
        assert found.iteration_time == Placement(costs, choices, found.starts).iteration_time

"""Plans that are shown before the search ends: within the limit, timed as they run, with a bound of all plans."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import deeppool as dp
from deeppool.planning.quick_plan import quick_plan
from deeppool.planning.request import cost_table
from deeppool.planning.search.optimality import optimality_factor
from tests.planning.evaluate.iteration_events import iteration_with_overlap
from tests.planning.search.test_block_evaluation import CLUSTER, trading_profile
from tests.planning.search.test_search import Definition, places_of
from tests.sampling import examples
from tests.strategies import contested_problems, make_graph, problems, profile_from_times, series_parallel_graphs

GRAPHS = series_parallel_graphs(max_layers=9)
ROUNDING = 1e-9


@given(
    st.one_of(problems(GRAPHS), contested_problems(GRAPHS)),
    st.sampled_from([None, 1.0, 1.5, 3.0]),
    st.sampled_from([None, 1.0, 1.25]),
)
@examples(100)
def test_it_keeps_the_limit_and_its_bound_holds(problem, limit, lower):
    profile, cluster, batch = problem
    known = [dp.plan(*problem, lower)] if lower is not None and (limit is None or lower <= limit) else []
    found = quick_plan(profile, cost_table(*problem), limit, known)
    assume(found is not None)
    definition, places = Definition(profile, cluster, batch).with_buckets(found.buckets), places_of(found)
    assert found.iteration_time == pytest.approx(iteration_with_overlap(definition, places)[0], rel=ROUNDING)
    assert limit is None or max(definition.amplifications(places)) <= limit * (1 + ROUNDING)
    assert found.amplification_limit == limit
    # Whatever the search finds is a plan, so no bound may be above it.
    best = dp.plan(*problem, limit)
    assert found.iteration_time <= optimality_factor(found.optimality) * best.iteration_time * (1 + ROUNDING)
    for plan in known:
        assert found.iteration_time <= plan.iteration_time * (1 + ROUNDING)


def test_of_branches_that_gain_side_by_side_it_is_the_plan_in_sequence():
    """By hand: 4 + 4 and 0 + 4.5 ms on one GPU, 1 + 6 ms on two; side by side 7 ms (see trading_profile)."""
    found = quick_plan(trading_profile(), cost_table(trading_profile(), CLUSTER, 4), None)
    assert found.iteration_time == pytest.approx(11.5e-3, rel=1e-4)
    assert [layer.gpus[0] for layer in found.layers] == [0, 0, 0, 0]
    # The longer branch takes 7 ms at least.
    assert found.optimality == "bound 1.643"
    assert found.layers[1].alternatives


def test_where_no_branches_can_run_side_by_side_there_is_none():
    skip = profile_from_times(make_graph([(), (0,), (0, 1)]), [lambda b: 1e-3 * b] * 3)
    assert quick_plan(skip, cost_table(skip, CLUSTER, 4), None) is None


def test_a_plan_that_does_not_fit_into_memory_is_none():
    graph = make_graph([(), (0,), (0,), (1, 2)], activation_bytes=[2**20] * 4)
    profile = profile_from_times(graph, [lambda b: 1e-3 + 1e-3 * b] * 4)
    costs = cost_table(profile, CLUSTER, 4)
    # On one GPU there are 4 layers x 4 samples x 1 MiB, on four a quarter of it.
    for memory, limit, fits in ((2**30, 1.0, True), (10 * 2**20, 1.0, False), (10 * 2**20, None, True)):
        limited = replace(costs, network=replace(costs.network, cluster=replace(CLUSTER, memory=memory)))
        found = quick_plan(profile, limited, limit)
        assert (found is not None) == fits
        if found is not None:
            assert max(use.total for use in found.memory) <= memory

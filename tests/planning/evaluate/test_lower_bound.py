"""The lower bound by a path against every assignment of GPUs, and on a chain small enough to add up by hand."""

import inspect
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.buckets import Buckets
from deeppool.planning.evaluate import lower_bound
from deeppool.planning.evaluate.lower_bound import LowerBound, longest_path
from deeppool.planning.evaluate.placement import Placement
from tests.planning.search.test_efficient_plans import GRAPHS, PROBLEMS, costs_of, every_plan
from tests.planning.search.test_search import Definition
from tests.sampling import examples
from tests.strategies import (
    BUCKETS,
    make_graph,
    measured_network,
    problems,
    profile_from_times,
)

GENERAL = problems(GRAPHS, gpus=(1, 2, 3, 4))
LIMITS = (1.0, 1.5, 3.0, math.inf)
ROUNDING = 1e-9


def paths(costs):
    """The longest path of one GPU, and that of all GPUs."""
    sources = [layer.predecessors for layer in costs.graph.layers]
    return {longest_path(sources, costs.compute[:, option].tolist()) for option in (0, -1)}


@given(GENERAL)
@examples(150)
def test_no_assignment_within_a_limit_beats_the_bound_without_overlap(problem):
    definition, costs = Definition(*problem), replace(costs_of(*problem), overlap=False)
    optima = definition.optima(LIMITS)
    for path in paths(costs):
        for limit, optimum in optima.items():
            bound = LowerBound(costs, path, None if math.isinf(limit) else limit).seconds()
            assert 0 < bound <= optimum * (1 + ROUNDING)


@given(
    problems(
        st.integers(1, 5).map(lambda size: make_graph([(i - 1,) if i else () for i in range(size)])), gpus=(1, 2, 3, 4)
    )
)
@examples(100)
def test_the_bound_of_a_chain_without_overlap_is_the_optimum(problem):
    definition, costs = Definition(*problem), replace(costs_of(*problem), overlap=False)
    for limit, optimum in definition.optima(LIMITS).items():
        bound = LowerBound(costs, range(len(costs.graph.layers)), None if math.isinf(limit) else limit).seconds()
        assert bound == pytest.approx(optimum)


@pytest.mark.slow
@given(PROBLEMS, BUCKETS)
@examples(150)
def test_no_assignment_within_a_budget_beats_the_bound_with_overlap(problem, buckets):
    costs, every = replace(costs_of(*problem), buckets=buckets), every_plan(problem, buckets)
    for path in paths(costs):
        assert LowerBound(costs, path, None).seconds() <= every[:, 0].min() * (1 + ROUNDING)
        for limit in (1.0, 1.3, 2.0):
            within = every[every[:, 1] <= limit * costs.single_gpu_time, 0]
            if len(within):
                assert LowerBound(costs, path, None).seconds(limit) <= within.min() * (1 + ROUNDING)


def test_two_layers_by_hand():
    # 4 s and 4 s on one GPU, 2 s and 3 s on two; nothing to synchronise, no transfers on equal GPUs.
    graph = make_graph([(), (0,)], parameter_bytes=0)
    profile = profile_from_times(
        graph, [{1: 2.0, 2: 4.0}.__getitem__, {1: 3.0, 2: 4.0}.__getitem__], batch_sizes=(1, 2)
    )
    costs = replace(
        costs_of(profile, Cluster(2, "two", 2, Link(1e9, 1.0, "by hand"), Link(1e9, 1.0, "by hand")), 2), overlap=False
    )
    assert LowerBound(costs, (0, 1), None).seconds() == pytest.approx(5.0)
    # Amplification 2 x 3 / 4 = 1.5 is over 1.4: the second layer stays on one GPU, and moving there takes long.
    assert LowerBound(costs, (0, 1), 1.4).seconds() > 7.0
    # 2 x (2 + 3) = 10 GPU-seconds are over a budget of 1 x 8: a price p lifts the bound to 5 + p (10 - 8), until the
    # plan on one GPU costs as little, 8 + p (8 - 8): 8 s at p = 1.5.
    assert LowerBound(costs, (0, 1), None).seconds(1.0) == pytest.approx(8.0, rel=0.05)


def test_an_all_reduce_beside_a_transfer_by_hand():
    """Layer 0 on one GPU, 1 s; its samples take 1 s to two GPUs, where layer 1 takes 1 s and its all-reduce 1 s.

    The all-reduce runs beside the transfer of the gradients back: 4 s. Layer 0 has too many parameters for two GPUs.
    """
    graph = make_graph([(), (0,)], [(), (10**9,)], parameter_bytes=[10**12, 10**9])
    profile = profile_from_times(graph, [lambda b: 1.0, {1: 1.0, 2: 100.0}.__getitem__], batch_sizes=(1, 2))
    link = Link(1e9, 0.0, "by hand")
    problem = profile, Cluster(2, "two", 2, link, link), 2
    assert every_plan(problem)[:, 0].min() == pytest.approx(4.0)
    assert LowerBound(costs_of(*problem), (0, 1), None).seconds() == pytest.approx(4.0)


def test_gradients_of_a_bucket_share_its_latency_in_the_bound():
    """Three layers of 8 MiB that compute 1 ms on two GPUs send all at once, in two steps of 10 ms: 23 ms, or 63."""
    graph = make_graph([(), (0,), (1,)], parameter_bytes=[2**23] * 3)
    profile = profile_from_times(graph, [{1: 1e-3, 2: 10.0}.__getitem__] * 3, batch_sizes=(1, 2))
    link = Link(1e18, 10e-3, "by hand")
    costs = costs_of(profile, Cluster(2, "two", 2, link, link), 2)
    bounds = []
    for alone, seconds in ((2**24, 23e-3), (2**22, 63e-3)):
        priced = replace(costs, buckets=Buckets(alone=alone))
        assert Placement(priced, (1,) * 3, (0,) * 3).iteration_time == pytest.approx(seconds)
        bounds.append(LowerBound(priced, (0, 1, 2), None).seconds())
        assert max(bounds) <= seconds * (1 + ROUNDING)
    assert bounds[1] > 23e-3


def test_a_tied_parameter_may_be_summed_apart_from_the_others_of_its_layer_in_the_bound():
    """Layer 0 on 2 GPUs has 15 MiB of its own, and 15 that layer 1 uses on 4: two sums of 1 ms; one of 30 takes 100."""
    size = 15 * 2**20
    graph = make_graph([(), (0,)], parameter_bytes=[2 * size, size])
    names = (("tied", "own"), ("tied",))
    layers = tuple(
        replace(layer, parameters=own, parameter_sizes=(size,) * len(own))
        for layer, own in zip(graph.layers, names, strict=True)
    )
    times = [{1: 1.0, 2: 10e-3, 4: 1.0}.__getitem__, {1: 10e-3, 2: 1.0, 4: 1.0}.__getitem__]
    profile = profile_from_times(replace(graph, layers=layers), times, batch_sizes=(1, 2, 4))
    network = measured_network({2: (1e-3, 1e-3, 100e-3), 4: (1e-3, 1e-3, 100e-3)}, (64, size, 2 * size))
    free = Link(1e18, 0.0, "by hand")
    costs = costs_of(profile, Cluster(4, "four", 4, free, free, measured=network), 4)
    costs = replace(costs, buckets=Buckets(alone=1, size=1))
    assert Placement(costs, (1, 2), (0, 0)).iteration_time == pytest.approx(22e-3)
    assert LowerBound(costs, (0, 1), None).seconds() <= 22e-3 * (1 + ROUNDING)


def test_the_longest_path_is_the_one_of_most_seconds():
    assert longest_path([(), (0,), (0,), (1, 2)], [1.0, 5.0, 2.0, 1.0]) == (0, 1, 3)
    assert longest_path([(), (0,), (0,), (1, 2)], [1.0, 2.0, 5.0, 1.0]) == (0, 2, 3)
    assert longest_path([(), (), (0, 1)], [1.0, 2.0, 1.0]) == (1, 2)


def test_no_module_of_the_search_is_used():
    assert "deeppool.planning.search" not in inspect.getsource(lower_bound)

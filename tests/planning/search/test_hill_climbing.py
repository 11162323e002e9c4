"""Hill climbing, by hand and on random problems: changes make plans faster, keep the limit and share no GPU."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base.cancellation import Cancellation
from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import RunCancelledError
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search import hill_climbing
from deeppool.planning.search.hill_climbing import climb, improve, keep_limit
from deeppool.planning.search.search import search
from deeppool.profiling.table import Measurement
from tests.planning.search.test_flow_shop import layers
from tests.planning.search.test_overlap import costs_of
from tests.planning.search.test_search import LIMITS
from tests.sampling import examples
from tests.strategies import ALONE_BYTES, contested_problems, make_graph, make_profile, problems, series_parallel_graphs

ANY = partial(keep_limit, None)
GRAPHS = series_parallel_graphs(max_layers=8)


def test_layers_in_a_row_change_together_where_one_alone_would_pay_a_transfer():
    """Each alone on two GPUs saves 6 of 9 s and pays more for transfers; all three take 9 s, not 27."""
    costs = layers([(1.0, 2.0)] * 3, [0] * 3, seconds_per_byte=20.0, moved=1)
    alone = Placement(costs, (0, 0, 0), (0, 0, 0))
    assert alone.iteration_time == pytest.approx(27.0)
    for options in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        assert Placement(costs, options, (0, 0, 0)).iteration_time > 27.0
    assert climb(alone, ANY).options == (1, 1, 1)


def test_a_layer_takes_the_gpus_of_the_one_beside_it():
    """Its gradient takes 20 s on two GPUs, and saves 6 of 9 s."""
    costs = layers([(1.0, 2.0)] * 3, [0, 0, ALONE_BYTES], seconds_per_byte=20.0 / ALONE_BYTES)
    assert climb(Placement(costs, (1, 1, 1), (0, 0, 0)), ANY).options == (1, 1, 0)


@pytest.mark.parametrize("order", [1, -1])
def test_layers_in_a_row_are_divided_where_one_more_or_less_would_pay_a_transfer(order):
    """Two of three layers save 6 of 9 s each on two GPUs, and 20 s of transfers lie between them; the third loses."""
    costs = layers([(1.0, 2.0)] * 4, [0, 0, 0, ALONE_BYTES][::order], seconds_per_byte=40.0 / ALONE_BYTES)
    moved = [
        replace(layer, input_bytes=(ALONE_BYTES // 4,)) if x == 2 else layer
        for x, layer in enumerate(costs.graph.layers)
    ]
    costs = replace(costs, graph=replace(costs.graph, layers=tuple(moved)))

    def placed(*options):
        return Placement(costs, options[::order], (0,) * 4)

    plan = placed(1, 0, 0, 0)
    assert plan.iteration_time == pytest.approx(3 + 27)
    for options in ((1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 1, 1), (0, 0, 0, 0)):
        assert placed(*options).iteration_time > 30
    found = climb(plan, ANY)
    assert found.options == placed(1, 1, 1, 0).options
    assert found.iteration_time == pytest.approx(3 * 3 + 9)


def test_a_branch_moves_to_gpus_beside_another_one():
    """Two branches of 3 s, which more GPUs do not speed up, take 1 + 6 + 1 s one after another, side by side 5 s."""
    graph = make_graph([(), (0,), (0,), (1, 2)], parameter_bytes=[0] * 4)
    seconds = [(1.0, 0.0), (1.0, 2.0), (1.0, 2.0), (1.0, 0.0)]
    measurements = [
        Measurement(layer.signature, (forward,) * 2, (backward,) * 2, (0.0,) * 2)
        for layer, (forward, backward) in zip(graph.layers, seconds, strict=True)
    ]
    link = Link(1e9, 0.0, "by hand")
    costs = costs_of(make_profile(graph, measurements, (1, 2)), Cluster(2, "by hand", 2, link, link), 2)
    in_sequence = Placement(costs, (0,) * 4, (0,) * 4)
    assert in_sequence.iteration_time == pytest.approx(8.0)
    timed = {}
    found = climb(in_sequence, ANY, timed=timed)
    assert found.iteration_time == pytest.approx(5.0)
    assert sorted(found.starts[1:3]) == [0, 1]
    # What another climb need not time again.
    values = {ways: number for ways, (number, exact) in timed.items() if exact}
    assert values == {ways: Placement(costs, *ways).iteration_time for ways in values}
    assert values[found.options, found.starts] == pytest.approx(5.0)
    # Nor does it build what was seen to be no faster.
    built, slower = [], [ways for ways, (number, _) in timed.items() if number >= 5.0]
    climb(found, ANY, timed=timed, at_least=lambda plan: built.append((plan.options, plan.starts)) or plan.least_time)
    assert slower
    assert not set(slower) & set(built)


@pytest.mark.parametrize(("start", "fits"), [(0, True), (1, False), (2, True)])
def test_branches_that_share_a_gpu_start_on_the_same_one(start, fits):
    """One branch is on GPUs 0 and 1: the other one may follow it there, or be on GPU 2, but not on GPU 1 alone."""
    graph = make_graph([(), (0,), (0,), (1, 2)])
    measurements = [Measurement(layer.signature, (1.0,) * 3, (1.0,) * 3, (0.0,) * 3) for layer in graph.layers]
    link = Link(1e9, 0.0, "by hand")
    costs = costs_of(make_profile(graph, measurements, (1, 2, 4)), Cluster(4, "by hand", 4, link, link), 4)
    plan = Placement(costs, (0, 1, 0, 0), (0, 0, 3, 0))
    assert hill_climbing._fits(plan.with_option([2], 0, start), [2]) is fits


@pytest.mark.parametrize(("node", "fits"), [(4, True), (3, False)])
def test_the_gpus_of_a_branch_that_forks_again_stay_in_one_node(node, fits):
    """A branch on GPU 2 forks again: one of its ends may move to GPU 3 if that is in the same node."""
    graph = make_graph([(), (), (0,), (0,), (1, 2, 3)])
    measurements = [Measurement(layer.signature, (1.0,) * 3, (1.0,) * 3, (0.0,) * 3) for layer in graph.layers]
    link = Link(1e9, 0.0, "by hand")
    costs = costs_of(make_profile(graph, measurements, (1, 2, 4)), Cluster(4, "by hand", node, link, link), 4)
    plan = Placement(costs, (0, 1, 0, 0, 0), (2, 0, 2, 2, 0))
    assert hill_climbing._fits(plan.with_option([3], 0, 3), [3]) is fits


@pytest.mark.parametrize(
    ("node", "other", "change", "fits"),
    [(4, 3, (0, 2), True), (4, 1, (0, 2), False), (4, 3, (1, 1), True), (2, 3, (1, 1), False)],
    ids=["behind", "another branch between", "two GPUs of a node", "two GPUs of two nodes"],
)
def test_a_branch_that_forks_again_is_on_gpus_in_a_row(node, other, change, fits):
    """One of its ends moves away from GPU 0, where the rest of it is; the other branch is on a GPU of its own."""
    graph = make_graph([(), (), (0,), (0,), (1, 2, 3)])
    measurements = [Measurement(layer.signature, (1.0,) * 3, (1.0,) * 3, (0.0,) * 3) for layer in graph.layers]
    link = Link(1e9, 0.0, "by hand")
    costs = costs_of(make_profile(graph, measurements, (1, 2, 4)), Cluster(4, "by hand", node, link, link), 4)
    plan = Placement(costs, (0,) * 5, (0, other, 0, 0, 0))
    assert hill_climbing._fits(plan.with_option([3], *change), [3]) is fits


def test_a_limit_forbids_a_change():
    """On two GPUs a layer takes 3 s, not 9, and its all-reduce 1 s: 8 / 9 of the GPU-seconds."""
    costs = layers([(1.0, 2.0)], [ALONE_BYTES], seconds_per_byte=1.0 / ALONE_BYTES)
    alone = Placement(costs, (0,), (0,))
    assert climb(alone, partial(keep_limit, 0.9)).options == (1,)
    assert climb(alone, partial(keep_limit, 0.88)).options == (0,)


def test_changes_at_random_lead_to_a_plan_that_no_single_change_reaches(monkeypatch):
    """The second layer takes 2 s on two or four GPUs; the first one 3 s on one, 1 s on four, and two are too slow.

    Transfers from one GPU to two take 2 s, to four 3 s. So the second has to go to four GPUs, 8 s and not 7, before the
    first can follow it there, 3 s.
    """
    graph = make_graph([(), (0,)], [(), (1,)], [0, 0])
    seconds = [(1.0, 100.0, 3.0), (2.0, 2.0, 100.0)]
    measurements = [
        Measurement(layer.signature, own, (0.0,) * 3, (0.0,) * 3)
        for layer, own in zip(graph.layers, seconds, strict=True)
    ]
    link = Link(2.0, 0.0, "by hand")
    costs = costs_of(make_profile(graph, measurements, (1, 2, 4)), Cluster(4, "by hand", 4, link, link), 4)
    apart = Placement(costs, (0, 1), (0, 0))
    assert apart.iteration_time == pytest.approx(7.0)
    assert climb(apart, ANY) is apart
    found = improve([apart], ANY, 6.6)
    assert found.options == (2, 2)
    assert found.iteration_time == pytest.approx(3.0)
    # A bound of 7 / 1.02 s, 6.863, or more says that it is near.
    assert improve([apart], ANY, 6.86).options == (2, 2)
    assert improve([apart], ANY, 6.87) is apart
    monkeypatch.setattr(hill_climbing, "MOST_VAIN", 0)
    assert improve([apart], ANY, 6.6) is apart


def test_a_climb_near_to_a_layer_leaves_others_alone():
    """Each of four layers takes 3 s on two GPUs and not 9; transfers take no time. The second one is there already."""
    costs = layers([(1.0, 2.0)] * 4, [0] * 4)
    plan = Placement(costs, (0, 1, 0, 0), (0,) * 4)
    assert climb(plan, ANY, {1}) is plan
    assert climb(plan, ANY, {0}).options == (1, 1, 0, 0)
    near = {2}
    assert climb(plan, ANY, near).options == (0, 1, 1, 1)
    assert near == {1, 2, 3, 4}


def test_it_ends_when_enough_was_tried(monkeypatch):
    costs = layers([(1.0, 2.0)] * 2, [0, 0])
    monkeypatch.setattr(hill_climbing, "MOST_TIMED", 1)
    assert climb(Placement(costs, (0, 0), (0, 0)), ANY).options == (0, 0)


@examples(60)
@given(st.one_of(problems(GRAPHS), contested_problems(GRAPHS, gpus=(2, 4, 8))), st.sampled_from(LIMITS))
def test_a_changed_plan_is_no_slower_keeps_the_limit_and_shares_no_gpu(problem, limit):
    costs = costs_of(*problem)
    found = search(costs, limit)
    before = Placement(costs, found.choices, found.starts)
    after = improve([before], partial(keep_limit, limit), 0.0)
    assert after.iteration_time <= before.iteration_time
    assert keep_limit(limit, after, range(len(after.options)))
    assert all(after.gpu_count(layer) <= width for layer, width in enumerate(after.free_widths))
    # As timed from nothing, and not from what was known of the plan before.
    assert Placement(costs, after.options, after.starts).iteration_time == after.iteration_time


def test_a_search_is_cancelled_though_no_change_is_permitted():
    cancellation, asked = Cancellation(), []

    def refuse(plan, layers):
        asked.append(layers)
        cancellation.request()
        return False

    costs = layers([(1.0, 2.0)] * 3, [0] * 3, seconds_per_byte=20.0)
    with cancellation.applied(), pytest.raises(RunCancelledError):
        improve([Placement(costs, (0, 0, 0), (0, 0, 0))], refuse, 0.0)
    assert len(asked) == 1


def test_nothing_is_tried_where_a_plan_lacks_no_memory():
    """Three layers on two GPUs each; what is to become less is the number of layers on one."""
    costs, tried = layers([(1.0, 2.0)] * 3, [0] * 3, seconds_per_byte=20.0), []

    def on_one(plan):
        tried.append(plan.options)
        return plan.options.count(0)

    enough = Placement(costs, (1, 1, 1), (0, 0, 0))
    assert improve([enough], ANY, 0.0, on_one) is enough
    assert set(tried) == {(1, 1, 1)}
    assert climb(Placement(costs, (0, 1, 1), (0, 0, 0)), ANY, value=on_one, at_least=on_one).options == (1, 1, 1)
    # Changes of layers in a row come first.
    assert tried[-1] == (1, 1, 1)

"""The alternatives of a layer against plans that were made that way."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeppool as dp
from deeppool.errors import InvalidValueError
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.layer_assignment import WHOLE_ITERATION
from deeppool.planning.report.alternatives import CountCost, alternatives_of
from deeppool.planning.report.explain import reason
from deeppool.planning.request import cost_table
from deeppool.records import files
from tests.figures.records import two_layer_plan
from tests.planning.search.test_search import LIMITS, ROUNDING, Definition, places_of
from tests.planning.searched import plan
from tests.planning.test_planner import small_plan
from tests.sampling import examples
from tests.strategies import contested_problems, make_graph, problems, profile_from_times, series_parallel_graphs


@examples(60)
@given(problems(), st.sampled_from(LIMITS))
def test_each_count_costs_what_the_plan_with_it_would(problem, limit):
    made, definition = plan(*problem, limit), Definition(*problem)
    places = places_of(made)
    now = definition.iteration_time(places)
    for index, layer in enumerate(alternatives_of(made).layers):
        count, start = places[index]
        counts = [cost.gpu_count for cost in layer.counts]
        assert counts == sorted({count, *(option.gpu_count for option in made.layers[index].alternatives)})
        assert [cost.gpu_count for cost in layer.counts if cost.chosen] == [layer.gpu_count] == [count]
        for cost in layer.counts:
            changed = [*places[:index], (cost.gpu_count, start), *places[index + 1 :]]
            then, amplifications = definition.iteration_time(changed), definition.amplifications(changed)
            assert cost.time == pytest.approx(definition.times(changed)[index], rel=1e-9)
            assert cost.amplification == pytest.approx(amplifications[index], rel=1e-9)
            compute, sync = definition.compute(index, cost.gpu_count), definition.synchronisation(index, changed[index])
            assert cost.sync == pytest.approx(sync, rel=1e-9)
            assert cost.reshard == pytest.approx(cost.time - compute - sync, abs=1e-9 * cost.time)
            assert cost.iteration_time_change == pytest.approx(then - now, abs=1e-9 * (then + now))
            broken = [value for value in amplifications if limit and value > limit * (1 + ROUNDING)]
            assert len(cost.over_limit) == len(broken)


def test_the_count_of_a_published_plan_is_over_the_limit_too():
    made = dp.plan(dp.find_profile("resnet50-h200"), 8, 32, 1.2, search="published")
    assert made.over_limit
    for layer, own in zip(alternatives_of(made).layers, made.layers, strict=True):
        (chosen,) = (cost for cost in layer.counts if cost.chosen)
        assert (own.name in chosen.over_limit) == (own.name in made.over_limit)


@pytest.mark.slow
@examples(40)
@given(contested_problems(series_parallel_graphs(max_layers=8)), st.sampled_from([1.0, 1.2, 1.5, 2.0]))
def test_a_count_is_over_the_limit_of_the_iteration_if_the_plan_with_it_is(problem, limit):
    made = plan(*problem, limit, limit_scope="iteration", overlap_sync=True)
    costs, places = cost_table(*problem), places_of(made)
    counts, starts = zip(*places, strict=True)
    now = Placement(costs, tuple(map(costs.gpu_counts.index, counts)), starts)
    for index, layer in enumerate(made.layers):
        for cost in layer.alternatives:
            then = now.with_option([index], costs.gpu_counts.index(cost.gpu_count)).gpu_seconds
            kept = then <= limit * made.single_gpu_iteration_time * (1 + ROUNDING)
            assert cost.over_limit == (() if kept else (WHOLE_ITERATION,))


def test_a_faster_count_that_the_goal_does_not_want_is_explained_by_the_goal():
    """Two GPUs save 8 of 20 ms and cost 4 ms more of GPU time; data parallelism takes longer by the second layer."""
    graph = make_graph([(), (0,)], parameter_bytes=[0, 2**32])
    profile = profile_from_times(graph, [lambda b: 4e-3 + 1e-3 * b, lambda b: 1e-4], (1, 2, 4, 8, 16))
    made = dp.plan(profile, 4, 16, goal="ddp_speed", network_model="paper")
    assert (made.optimality, made.caveats, made.layers[0].gpu_count) == ("exact", (), 1)
    assert "ms faster, but not taken: goal ddp_speed" in reason(made.layers[0], made.gpu_counts, made.why_not_faster)


def test_one_layer_can_be_selected_and_has_a_reason():
    made = small_plan()
    (found,) = alternatives_of(made, "layer1").layers
    assert found == alternatives_of(made).layers[1]
    assert (found.name, found.reason) == ("layer1", reason(made.layers[1], made.gpu_counts, made.why_not_faster))


def test_the_text_has_a_line_for_every_count_and_marks_the_count_of_the_plan():
    text = alternatives_of(small_plan(), "layer1").explain()
    rows = {line.split()[0]: line for line in text.splitlines() if line.split()[:1] and line.split()[0].isdigit()}
    assert list(rows) == ["1", "2", "4"]
    assert "the plan's" in rows["1"]
    assert "itself" in rows["4"]
    assert max(map(len, text.splitlines())) <= 100


def test_an_unknown_layer_raises_with_similar_names():
    with pytest.raises(InvalidValueError, match=r"no layer 'layr1' among the 2 layers of drawn; there are layer1"):
        alternatives_of(small_plan(), "layr1")


def test_a_plan_without_alternatives_is_rejected():
    with pytest.raises(InvalidValueError, match="the plan of tiny holds no costs of other GPU counts"):
        alternatives_of(two_layer_plan())


def test_a_layer_without_another_count_has_only_its_own():
    made = small_plan()
    alone = dataclasses.replace(made.layers[1], alternatives=())
    found = alternatives_of(dataclasses.replace(made, layers=(made.layers[0], alone)), "layer1")
    assert [cost.chosen for cost in found.layers[0].counts] == [True]


def test_where_one_count_was_searched_it_is_the_only_one():
    made = dataclasses.replace(two_layer_plan(), gpu_counts=(4,))
    assert [len(layer.counts) for layer in alternatives_of(made).layers] == [1, 1]


def test_alternatives_read_back_are_those_written(tmp_path):
    found = alternatives_of(small_plan())
    assert files.load(files.save(found, tmp_path / "alternatives.json")) == found


def test_a_file_written_before_loads(tmp_path):
    cost = {"gpu_count": 1, "chosen": True, "time": 1e-3, "amplification": 1.0}
    layer = {
        "name": "conv",
        "gpu_count": 1,
        "counts": [cost | {"iteration_time_change": 0.0, "over_limit": []}],
        "reason": "2: 1.0 ms slower",
    }
    request = {"model": "tiny", "gpus": 4, "global_batch": 8, "amplification_limit": 2.0, "iteration_time": 5e-3}
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"format": "deeppool/price-list", "version": 1, **request, "layers": [layer]}))
    (found,) = files.load(file).layers
    assert found.counts == (CountCost(1, 0.0, 1.0, (), chosen=True, time=1e-3),)

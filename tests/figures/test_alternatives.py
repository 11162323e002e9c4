"""Why a layer got its GPUs, as drawn: every count with its times, its effect on the iteration, and the limit."""

from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool import figures
from deeppool.errors import InvalidValueError
from deeppool.planning.report.alternatives import alternatives_of
from tests.planning.test_planner import small_plan

RECORDED = Path(__file__).parents[1] / "records/recorded"


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def test_the_parts_of_a_count_are_those_of_the_plan_that_has_it() -> None:
    profile = dp.find_profile("vgg16-cpu")
    plan = dp.plan(profile, dp.Cluster(8), 32, 1.5)
    (found,) = alternatives_of(plan, "classifier.0").layers
    # A plan without a limit, and one for a single GPU, have the layer on other counts.
    for other in (dp.plan(profile, dp.Cluster(8), 32), dp.plan(profile, dp.Cluster(1), 32)):
        layer = next(x for x in other.layers if x.name == "classifier.0")
        cost = next(x for x in found.counts if x.gpu_count == layer.gpu_count)
        assert cost.gpu_count != found.gpu_count
        assert cost.sync == pytest.approx(layer.sync)
    drawn = figures.alternatives(alternatives_of(plan, "classifier.0"))
    bars = [trace for trace in drawn.data if trace.type == "bar"]
    assert [bar.name for bar in bars] == ["forward + backward", "transfers of activations", "all-reduce of gradients"]
    assert [sum(heights) for heights in zip(*(bar.y for bar in bars), strict=True)] == pytest.approx(
        [1e3 * cost.time for cost in found.counts]
    )
    assert list(drawn.layout.xaxis2.ticktext) == [str(cost.gpu_count) for cost in found.counts]


def test_counts_over_the_limit_are_crosses_above_its_line() -> None:
    plan = dp.plan(dp.find_profile("vgg16-cpu"), 8, 32, 1.5)
    drawn = figures.alternatives(alternatives_of(plan, "classifier.0"))
    within, over = traces(drawn)["within the limit"], traces(drawn)["over the limit"]
    assert over.y and max(within.y) <= 1.5 < min(over.y)
    (line,) = drawn.layout.shapes
    assert (line.y0, line.y1) == (1.5, 1.5)
    texts = {note.x: note.text for note in drawn.layout.annotations}
    counts = [int(text) for text in drawn.layout.xaxis2.ticktext]
    chosen = next(layer.gpu_count for layer in plan.layers if layer.name == "classifier.0")
    assert texts[counts.index(chosen)] == "<b>chosen</b>"
    assert all("over the limit" in texts[place] for place in over.x)
    assert drawn.layout.title.text == f"classifier.0: why {chosen} of 8 GPUs"


def test_many_layers_are_a_map_with_a_mark_at_each_chosen_count() -> None:
    found = alternatives_of(small_plan())
    drawn = figures.alternatives(found)
    assert [list(row) for row in drawn.data[0].z] == [
        [100 * cost.iteration_time_change / found.iteration_time for cost in layer.counts] for layer in found.layers
    ]
    chosen = traces(drawn)["chosen"]
    assert list(zip(chosen.y, chosen.x, strict=True)) == [
        (row, str(layer.gpu_count)) for row, layer in enumerate(found.layers)
    ]
    assert list(drawn.layout.yaxis.ticktext) == [layer.name for layer in found.layers]


def test_a_count_that_was_ruled_out_is_blank_and_files_of_earlier_versions_have_one_bar() -> None:
    recorded = dp.load(RECORDED / "price-list.json")
    assert [row.count(None) for row in map(list, figures.alternatives(recorded).data[0].z)] == [0, 1, 1, 0, 0]
    bars = [x for x in figures.alternatives(replace(recorded, layers=recorded.layers[:1])).data if x.type == "bar"]
    assert [bar.name for bar in bars] == ["time"]
    with pytest.raises(InvalidValueError, match="record must be a PlanAlternatives, got 'plan'"):
        figures.alternatives("plan")

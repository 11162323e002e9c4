"""The layers of a plan: counts, times and amplification as the plan has them, every label readable."""

from dataclasses import replace

import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from tests.figures.records import layer, plan_of, run_of, two_layer_plan

PARTS = ("forward", "backward", "reshard", "sync")


def panel(figure, number):
    return [trace for trace in figure.data if trace.yaxis == ("y" if number == 1 else f"y{number}")]


def deep_plan(count, gpus=8, **more):
    names = [f"Mixed_{i}b.branch3x3dbl_{i}.conv" for i in range(count)]
    return plan_of(*[layer(name, 1, forward=0.01, backward=0.02) for name in names], gpus=gpus, **more)


def test_the_three_panels_show_the_plans_own_numbers():
    plan = two_layer_plan()
    figure = figures.layers(plan)
    counts, times, amplifications = (panel(figure, number) for number in (1, 2, 3))
    assert [list(trace.y) for trace in counts] == [[4, 1]]
    shown = {trace.name: trace.y for trace in times}
    assert set(shown) == set(PARTS)
    for index, own in enumerate(plan.layers):
        assert {part: shown[part][index] for part in PARTS} == pytest.approx(
            {part: 1e3 * getattr(own, part) for part in PARTS}
        )
        assert sum(shown[part][index] for part in PARTS) == pytest.approx(1e3 * own.time)
    assert [list(trace.y) for trace in amplifications] == [[x.amplification for x in plan.layers]]
    assert figure.layout.barmode == "stack"


def test_every_axis_has_a_unit():
    figure = figures.layers(two_layer_plan())
    assert [axis.title.text for axis in figure.select_yaxes()] == ["GPUs", "time (ms)", "amplification (×)"]
    assert figure.layout.xaxis3.title.text == "layer, in order of execution"


def test_a_part_that_no_layer_has_is_left_out_of_the_legend():
    names = [trace.name for trace in figures.layers(deep_plan(3)).data]
    assert names == ["GPUs", "forward", "backward", "amplification"]


def test_the_limit_is_a_labelled_line_inside_the_panel():
    figure = figures.layers(two_layer_plan())
    (line,) = figure.layout.shapes
    assert (line.y0, line.y1, line.yref) == (2.0, 2.0, "y3")
    assert "limit 2" in [note.text for note in figure.layout.annotations]
    assert figure.layout.yaxis3.range[1] > 2.0


def test_a_limit_of_the_iteration_is_named_so():
    figure = figures.layers(replace(deep_plan(3), limit_scope="iteration"))
    assert "limit 2 of the iteration" in [note.text for note in figure.layout.annotations]


def test_a_plan_without_a_limit_has_no_line():
    assert figures.layers(deep_plan(3, limit=None)).layout.shapes == ()


def test_extrapolated_layers_look_different_and_are_in_the_legend():
    plan = plan_of(
        *[layer(name, 2, forward=1.0, single_gpu_time=0.4) for name in ("plain", "far")], extrapolated=("far",)
    )
    looks = {
        plan.layers[x].name: (trace.name, trace.marker.symbol)
        for trace in panel(figures.layers(plan), 3)
        for x in trace.x
    }
    assert looks == {
        "plain": ("amplification", "circle"),
        "far": ("amplification, time extrapolated", "circle-open"),
    }


def test_hover_texts_have_name_gpus_time_and_amplification():
    counts, *_ = panel(figures.layers(two_layer_plan()), 1)
    assert list(counts.customdata[0]) == ["conv", "4 of 4 GPUs (GPU 0–3)", "31 ms", "1.24"]


def test_every_layer_is_named_where_there_is_room():
    axis = figures.layers(deep_plan(22)).layout.xaxis3
    assert list(axis.tickvals) == list(range(22))
    assert axis.ticktext[0] == "Mixed_0b.bra…hdbl_0.conv" or "…" in axis.ticktext[0]


@pytest.mark.parametrize("count", [45, 130, 500])
def test_labels_of_many_layers_are_thinned_and_it_is_said(count):
    axis = figures.layers(deep_plan(count)).layout.xaxis3
    step = axis.tickvals[1]
    assert len(axis.tickvals) <= 44
    assert f"one in {step} is labelled" in axis.title.text
    assert max(map(len, axis.ticktext)) <= 26


def test_gpu_counts_of_a_large_cluster_are_on_a_log_axis_that_shows_one_gpu():
    plan = plan_of(layer("conv", 256, forward=1.0), layer("fc", 1, forward=1.0), gpus=256)
    axis = figures.layers(plan).layout.yaxis
    assert axis.type == "log"
    assert axis.range[0] < 0
    assert list(axis.tickvals) == [1, 256]


def test_gpu_counts_whose_labels_would_overlap_are_labelled_in_part():
    counts = [1, 2, 4, 8, 16, 32]
    plan = plan_of(*(layer(f"conv{n}", n, forward=1.0) for n in counts), gpus=32)
    assert list(figures.layers(plan).layout.yaxis.tickvals) == counts
    # Over three powers of ten, 4 and 8 are less than a line of text apart.
    plan = plan_of(*(layer(f"conv{n}", n, forward=1.0) for n in (1, 4, 8)), gpus=1024)
    assert list(figures.layers(plan).layout.yaxis.tickvals) == [1, 8, 1024]


def test_the_subtitle_says_the_times_are_predicted_and_from_what():
    subtitle = figures.layers(two_layer_plan()).layout.title.subtitle.text
    assert subtitle.startswith("<b>predicted</b> from measured layer times (Test CPU)")


def test_only_a_plan_has_layers():
    with pytest.raises(InvalidValueError, match="plan must be a Plan, got a RunRecord"):
        figures.layers(run_of())


def test_branch_beside_others_hangs_where_its_gpus_are():
    plan = plan_of(layer("stem", 4, forward=0.01), replace(layer("beside", 2, forward=0.01), gpus=(2, 3)))
    (counts,) = [trace for trace in figures.layers(plan).data if trace.name == "GPUs"]
    assert (list(counts.base), list(counts.y)) == ([0, 2], [4, 2])

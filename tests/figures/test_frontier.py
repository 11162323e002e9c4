"""The frontier's figure: the record's own points, data parallelism beside them, and the plan at its place."""

import math
from dataclasses import replace

import pytest

from deeppool import figures
from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.frontier import THIS_PLAN, frontier_mark
from deeppool.planning.planner import frontier, plan
from tests.strategies import make_graph, profile_from_times

CLUSTER = Cluster(4, inside=Link(1e12, 0.0, "made by hand"))
# One layer that scales and one that does not.
PROFILE = profile_from_times(make_graph([(), (0,)]), [lambda b: 0.5e-3 * b, lambda b: 8e-3])


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def test_the_line_and_the_squares_are_the_records_own_numbers():
    found = frontier(PROFILE, CLUSTER, 16)
    shown = traces(figures.frontier(found))
    points = found.points[::-1]
    assert list(shown["efficient plans"].x) == pytest.approx([1e3 * point.gpu_seconds for point in points])
    assert list(shown["efficient plans"].y) == pytest.approx([1e3 * point.iteration_time for point in points])
    # By hand: k GPUs take 16 x 0.5 / k and 8 ms.
    assert list(shown["data parallel"].y) == pytest.approx([16.0, 12.0, 10.0])
    assert list(shown["data parallel"].x) == pytest.approx([16.0, 24.0, 40.0])
    assert list(shown["data parallel"].text) == ["1", "2", "4"]
    # The line begins at one GPU, under its label.
    assert shown["data parallel"].textfont.shadow == theme.halo()
    assert len(shown) == 2


def test_the_frontier_serves_a_budget_with_the_plan_that_costs_no_more():
    curve = traces(figures.frontier(frontier(PROFILE, CLUSTER, 16)))["efficient plans"]
    assert curve.line.shape == "hv"
    assert list(curve.x) == sorted(curve.x)


def test_a_plan_is_marked_where_its_time_and_work_are():
    found = frontier(PROFILE, CLUSTER, 16)
    made = plan(PROFILE, CLUSTER, 16, 1.5)
    mark = traces(figures.frontier(found, made))[THIS_PLAN]
    assert (list(mark.x), list(mark.y)) == ([1e3 * made.gpu_seconds], [1e3 * made.iteration_time])
    assert mark.to_plotly_json() == frontier_mark(found, made).to_plotly_json()
    assert any(
        mark.x[0] == pytest.approx(x) and mark.y[0] == pytest.approx(y)
        for x, y in zip(*(traces(figures.frontier(found))["efficient plans"][axis] for axis in "xy"), strict=True)
    )


def test_everything_lies_within_the_axes_and_the_axes_have_units():
    for batch, gpus in ((16, 1), (16, 4), (1024, 256)):
        found = frontier(PROFILE, Cluster(gpus), batch)
        figure = figures.frontier(found, plan(PROFILE, Cluster(gpus), batch))
        for axis, letter in ((figure.layout.xaxis, "x"), (figure.layout.yaxis, "y")):
            low, high = (10**bound if axis.type == "log" else bound for bound in axis.range)
            assert all(low < value < high for trace in figure.data for value in trace[letter])
            scale = ", log" if axis.type == "log" else ""
            assert axis.title.text.endswith(tuple(f" ({unit}{scale})" for unit in ("GPU-s", "s", "GPU-ms", "ms")))


def test_times_that_differ_in_their_last_digit_have_an_axis_with_room_beside_them():
    found = frontier(PROFILE, Cluster(1), 16)
    (point,) = found.points
    alike = replace(point, gpu_seconds=math.nextafter(point.gpu_seconds, 1.0))
    low, high = figures.frontier(replace(found, points=(alike,))).layout.xaxis.range
    assert high - low > 0.1 * high


def test_one_gpu_and_one_plan_are_in_the_singular():
    layout = figures.frontier(frontier(PROFILE, Cluster(1), 16)).layout
    assert "on 1 GPU:" in layout.title.text
    assert "1 efficient plan," in layout.title.subtitle.text


@pytest.mark.parametrize(("gpus", "batch"), [(256, 2048), (1024, 4096)])
def test_an_axis_over_powers_names_round_times_in_its_range(gpus, batch):
    axis = figures.frontier(frontier(PROFILE, Cluster(gpus, inside=CLUSTER.inside), batch)).layout.yaxis
    assert axis.type == "log"
    assert 3 <= len(axis.tickvals) <= 12
    assert all(axis.range[0] <= math.log10(tick) <= axis.range[1] for tick in axis.tickvals)
    assert [float(text.replace(",", "")) for text in axis.ticktext] == pytest.approx(list(axis.tickvals))
    assert {text.strip("0.,") for text in axis.ticktext} <= {"1", "2", "5"}


def test_hover_texts_have_time_gpu_time_and_amplification():
    found = frontier(PROFILE, CLUSTER, 16)
    for trace in figures.frontier(found, plan(PROFILE, CLUSTER, 16)).data:
        assert "%{y:,.4~r} ms an iteration<br>%{x:,.4~r} GPU-ms, amplification" in trace.hovertemplate
        work = [x / 1e3 / found.single_gpu_iteration_time for x in trace.x]
        assert list(trace.customdata) == pytest.approx(work)


@pytest.mark.parametrize(
    "other",
    [
        lambda: plan(PROFILE, CLUSTER, 32),
        lambda: plan(PROFILE, replace(CLUSTER, gpus=2), 16),
        lambda: plan(PROFILE, replace(CLUSTER, name="elsewhere"), 16),
    ],
)
def test_a_plan_of_another_query_is_refused(other):
    with pytest.raises(InvalidValueError, match=r"the plan is of drawn, batch .*make a frontier for the same"):
        figures.frontier(frontier(PROFILE, CLUSTER, 16), other())


def test_only_a_frontier_has_one():
    with pytest.raises(InvalidValueError, match="found must be a Frontier, got 'vgg16'"):
        figures.frontier("vgg16")


def test_the_dark_variant_has_the_same_numbers():
    found = frontier(PROFILE, CLUSTER, 16)
    light, dark = figures.frontier(found), figures.frontier(found, dark=True)
    assert [list(trace.x) for trace in light.data] == [list(trace.x) for trace in dark.data]
    assert light.layout.template.layout.paper_bgcolor != dark.layout.template.layout.paper_bgcolor

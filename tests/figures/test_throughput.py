"""Speed-up against cluster throughput: the record's own numbers, every mark told apart and explained."""

from dataclasses import replace

import numpy as np
import pytest

from deeppool import figures
from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.frontier import THIS_PLAN
from deeppool.figures.throughput import throughput_mark
from deeppool.planning.planner import plan
from deeppool.planning.studies.collocation_tradeoff import operating_point, share
from tests.figures.records import two_layer_plan
from tests.strategies import make_graph, profile_from_times

PROFILE = profile_from_times(make_graph([(), (0,)]), [lambda b: 0.5e-3 * b, lambda b: 8e-3])


def shared_cluster(gpus=4, batch=16, **more):
    """One layer that scales and one that does not, beside a background of 0.5 ms a sample."""
    background = profile_from_times(make_graph([()]), [lambda b: 0.5e-3 * b])
    return share(PROFILE, Cluster(gpus, inside=Link(1e12, 0.0, "made by hand")), batch, background, **more)


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def test_the_curve_and_the_marks_are_the_records_own_points():
    shared = shared_cluster()
    shown = traces(figures.throughput(shared))
    for name, points in {
        "burst parallel, collocated": shared.efficient(),
        "static partition, data parallel": shared.data_parallel_partitions,
        "static partition, burst parallel": shared.burst_parallel_partitions,
    }.items():
        assert list(shown[name].x) == [point.speedup for point in points]
        assert list(shown[name].y) == [point.throughput for point in points]
    assert len(shown) == 3
    assert len({(trace.mode, trace.marker.symbol) for trace in shown.values()}) == 3


def test_the_curve_promises_between_two_plans_what_the_faster_one_gives():
    curve = traces(figures.throughput(shared_cluster()))["burst parallel, collocated"]
    assert list(curve.x) == sorted(curve.x, reverse=True)
    assert curve.line.shape == "hv"  # from a plan to the next slower one first at its own height


def test_a_plan_that_is_the_only_efficient_one_is_seen_around_the_mark_of_its_partition():
    whole = shared_cluster()
    best = max(whole.efficient(), key=lambda point: point.speedup)
    shown = traces(figures.throughput(replace(whole, points=(best,))))
    curve, partitions = shown["burst parallel, collocated"], shown["static partition, data parallel"]
    assert len(curve.x) == 1 and curve.marker.size > 1.5 * partitions.marker.size


def test_partitions_are_labelled_with_their_gpus():
    shown = traces(figures.throughput(shared_cluster()))
    assert list(shown["static partition, data parallel"].text) == ["1 + 3", "2 + 2", "4 + 0"]


def test_the_labels_of_partitions_are_drawn_last_and_can_be_read_on_lines_and_marks():
    for dark in (False, True):
        figure = figures.throughput(shared_cluster(), dark=dark)
        assert [trace.name for trace in figure.data if trace.text is not None] == [figure.data[-1].name]
        assert set(figure.data[-1].textfont.shadow.split(", ")) == {f"0 0 3px {theme.paper(dark=dark)}"}
        (background_alone,) = figure.layout.shapes
        assert background_alone.layer == "below"


def test_both_axes_have_a_unit_start_at_zero_and_hold_everything():
    shared = shared_cluster()
    figure = figures.throughput(shared)
    assert figure.layout.xaxis.title.text == "foreground speed-up over one GPU (×)"
    assert figure.layout.yaxis.title.text == "cluster throughput (samples/s)"
    for axis, values in ((figure.layout.xaxis, "x"), (figure.layout.yaxis, "y")):
        assert axis.range[0] == 0
        assert axis.range[1] > max(np.max(trace[values]) for trace in figure.data)
    (line,) = figure.layout.shapes
    assert (line.y0, line.y1) == (8000, 8000)
    assert figure.layout.yaxis.range[1] > 8000


def test_hover_texts_say_what_makes_a_point_a_plan():
    curve = traces(figures.throughput(shared_cluster()))["burst parallel, collocated"]
    assert list(curve.customdata[0]) == [
        "burst parallel, collocated",
        "4 GPUs (limit 1.00 of the iteration), 0 for the background alone",
        "10 ms",
        "1,600 foreground + 4,800 background",
        "4.00× data parallel on 4 GPUs, predicted",
    ]


def test_the_subtitle_says_predicted_from_what_and_how_much_is_harvested():
    subtitle = figures.throughput(shared_cluster()).layout.title.subtitle.text
    assert subtitle.replace("<br>", " ") == (
        "<b>predicted</b> from estimated layer times (drawn); global batch 16, background batch 16; "
        "100 % of idle time harvested, no interference modelled; exact"
    )
    partly = figures.throughput(shared_cluster(harvest_of_idle=0.6)).layout.title.subtitle.text
    assert "; 60 % of idle time harvested, no interference modelled; " in partly.replace("<br>", " ")
    beside = replace(shared_cluster(), interference="a device, 2026-11-21", optimality="heuristic")
    simulated = figures.throughput(beside).layout.title.subtitle.text.replace("<br>", " ")
    assert simulated.startswith("<b>simulated</b> from estimated layer times")
    assert "; background on every GPU, interference as on a device, 2026-11-21; heuristic" in simulated
    far = figures.throughput(shared_cluster(batch=64)).layout.title.subtitle.text
    assert "extrapolated on 1 or 2 GPUs (drawn)" in far


def test_one_gpu_is_drawn_as_one_gpu():
    assert figures.throughput(shared_cluster(1)).layout.title.text == "drawn with drawn on 1 GPU"


def test_only_a_shared_cluster_has_a_throughput():
    with pytest.raises(InvalidValueError, match="shared must be a SharedCluster, got a Plan"):
        figures.throughput(two_layer_plan())


def test_a_plan_is_marked_with_what_it_leaves_to_the_background():
    shared = shared_cluster()
    made = two_layer_plan()
    mine = plan(PROFILE, shared.cluster, shared.global_batch, 1.5)
    mark = traces(figures.throughput(shared, mine))[THIS_PLAN]
    point = operating_point(shared, mine)
    assert (list(mark.x), list(mark.y)) == ([point.speedup], [point.throughput])
    assert mark.to_plotly_json() == throughput_mark(shared, mine).to_plotly_json()
    with pytest.raises(InvalidValueError, match="the plan is of tiny"):
        figures.throughput(shared, made)

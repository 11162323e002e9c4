"""Several foregrounds on one cluster: a panel each, one legend, everything inside."""

from dataclasses import replace

import pytest

from deeppool.errors import InvalidValueError
from deeppool.evaluation import figures
from tests.figures.records import two_layer_plan
from tests.figures.test_throughput import shared_cluster


def test_each_foreground_has_a_panel_and_all_have_one_legend():
    small, large = shared_cluster(), shared_cluster(batch=32)
    figure = figures.partitions(small, large)
    assert len(figure.data) == 8
    assert {trace.name for trace in figure.data if trace.showlegend} == {trace.name for trace in figure.data}
    assert len([trace for trace in figure.data if trace.showlegend]) == 4
    for shared, axis in ((small, "x"), (large, "x2")):
        shown = {trace.name: trace for trace in figure.data if trace.xaxis == axis}
        assert list(shown["burst parallel, collocated"].x) == [point.speedup for point in shared.efficient()]
        assert list(shown["static partition, data parallel"].y) == [
            point.throughput for point in shared.data_parallel_partitions
        ]
        assert set(shown["background alone on all GPUs"].y) == {shared.background_alone_throughput}
        # Nothing is drawn over the labels.
        assert [trace.text is not None for trace in figure.data if trace.xaxis == axis] == [False] * 3 + [True]
    assert [note.text for note in figure.layout.annotations] == ["drawn, batch 16", "drawn, batch 32"]


def test_axes_start_at_zero_hold_everything_and_have_units():
    shared = shared_cluster()
    figure = figures.partitions(shared)
    for axis, values in ((figure.layout.xaxis, "x"), (figure.layout.yaxis, "y")):
        assert axis.range[0] == 0
        assert axis.range[1] >= max(max(trace[values]) for trace in figure.data)
    assert "(×)" in figure.layout.xaxis.title.text and "(samples/s)" in figure.layout.yaxis.title.text
    subtitle = figure.layout.title.subtitle.text.replace("<br>", " ")
    assert subtitle.startswith("<b>predicted</b> from estimated layer times")
    assert "no interference modelled" in subtitle


def test_simulated_interference_is_named():
    """The notebook of figure 10 draws plans that were simulated beside backgrounds."""
    figure = figures.partitions(replace(shared_cluster(), interference="a device, 2026-11-21", optimality="heuristic"))
    subtitle = figure.layout.title.subtitle.text.replace("<br>", " ")
    assert subtitle.startswith("<b>simulated</b> from estimated layer times")
    assert subtitle.endswith("; background on every GPU, interference as on a device, 2026-11-21")


@pytest.mark.parametrize(
    ("given", "told"),
    [((), "partitions cannot draw nothing"), ((two_layer_plan(),), r"shared\[0\] must be a SharedCluster, got a Plan")],
)
def test_something_else_is_refused(given, told):
    with pytest.raises(InvalidValueError, match=told):
        figures.partitions(*given)

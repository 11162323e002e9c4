"""Three scenarios as bars: the record's own numbers, one legend, the ceiling inside the picture."""

import dataclasses

import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import InvalidValueError
from deeppool.evaluation import figures
from deeppool.evaluation.experiments.scenarios import three_scenarios
from tests.figures.records import two_layer_plan
from tests.strategies import make_graph, profile_from_times

PROFILE = profile_from_times(make_graph([(), (0,)]), [lambda b: 0.5e-3 * b, lambda b: 8e-3])


@pytest.fixture(scope="module")
def found():
    return three_scenarios(PROFILE, Cluster(4, inside=Link(1e12, 0.0, "made by hand")), 16)


def test_bars_are_the_records_throughputs_a_panel_for_each_model(found):
    other = dataclasses.replace(found, model="<other>")
    figure = figures.scenarios(found, other)
    assert len(figure.data) == 4
    for trace in figure.data:
        assert list(trace.x) == ["DP", "BP", "BP + Col"]
        assert list(trace.y) == [getattr(each, f"{trace.name}_throughput") for each in found.scenarios]
    assert [trace.showlegend for trace in figure.data] == [True, True, False, False]
    headings = [note.text for note in figure.layout.annotations]
    assert any(text.startswith("&lt;other&gt;") for text in headings)
    assert figure.layout.barmode == "stack"


def test_the_papers_gain_is_marked_on_the_models_it_prints_one_for(found):
    figure = figures.scenarios(found, dataclasses.replace(found, model="inception_v3"))
    (marks,) = [trace for trace in figure.data if trace.type == "scatter"]
    assert (marks.xaxis, list(marks.x), marks.showlegend) == ("x2", ["BP + Col"], True)
    assert list(marks.y) == [pytest.approx(1.15 * found.scenario("BP").throughput)]


def test_a_mark_above_all_bars_is_inside_the_picture(found):
    figure = figures.scenarios(
        dataclasses.replace(found, model="vgg16", scenarios=(found.scenario("BP"),), background_alone_throughput=1.0)
    )
    assert figure.layout.yaxis.range[1] > figure.data[-1].y[0] > 1.9 * found.scenario("BP").throughput


def test_the_ceiling_lies_inside_and_the_subtitle_says_that_it_is_simulated(found):
    figure = figures.scenarios(found)
    (line,) = figure.layout.shapes
    assert line.y0 == found.background_alone_throughput
    assert figure.layout.yaxis.range[1] > max(line.y0, *(each.throughput for each in found.scenarios))
    assert "samples/s" in figure.layout.yaxis.title.text
    assert figure.layout.title.subtitle.text.startswith(f"<b>simulated</b> from {found.provenance} layer times")


@pytest.mark.parametrize(
    ("given", "told"),
    [((), "scenarios cannot draw nothing"), ((two_layer_plan(),), r"found\[0\] must be a ThreeScenarios, got a Plan")],
)
def test_something_else_is_refused(given, told):
    with pytest.raises(InvalidValueError, match=told):
        figures.scenarios(*given)

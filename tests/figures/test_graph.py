"""The drawn graph: every layer and edge of it, coloured by its own numbers, readable at the width of a laptop."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from deeppool.figures.graph_canvas import CHARACTER, LONGEST, MARGINS, PAGE, ROW
from deeppool.planning.planner import plan
from deeppool.profiling.shipped import find_profile
from tests.strategies import make_graph, make_profile, profile_from_times

BRANCHES = [(), (0,), (0,), (1,), (0, 2, 3)]
MIB = 2**20


def branches():
    return make_graph(
        BRANCHES,
        input_bytes=[(), (1024,), (1024,), (2048,), (1024, 512, 4096)],
        parameter_bytes=[MIB, 10 * MIB, 0, 100 * MIB, 1024],
        activation_bytes=[1, 2, 3, 4, 5],
    )


def timed(graph):
    return profile_from_times(graph, [lambda b, n=n: 1e-3 * 10**n * b for n in range(len(graph.layers))])


def nodes(figure):
    """Layer → its place, its text, its colour, its hover lines."""
    return {
        data[0]: ((x, y), text, colour, data[2])
        for trace in figure.data[1:]
        for data, x, y, text, colour in zip(
            trace.customdata,
            trace.x,
            trace.y,
            trace.text,
            trace.marker.color if trace.marker.coloraxis else [None] * len(trace.x),
            strict=True,
        )
    }


def lines(figure):
    """Corners of each drawn line."""
    corners = list(zip(figure.data[0].x, figure.data[0].y, strict=True))
    pieces = itertools.groupby(corners, lambda corner: corner[0] is None)
    return [list(piece) for gap, piece in pieces if not gap]


def test_every_layer_is_a_node_and_every_edge_joins_two_of_them():
    figure = figures.graph(branches())
    places = {layer: place for layer, (place, *_) in nodes(figure).items()}
    assert set(places) == set(range(5))
    wanted = {(places[a], places[b]) for b, sources in enumerate(BRANCHES) for a in sources}
    assert {(piece[0], piece[-1]) for piece in lines(figure)} == wanted
    # From the top down.
    assert all(start[1] < end[1] for start, end in wanted)
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]


def test_colours_are_the_profiles_times():
    graph = branches()
    profile = timed(graph)
    figure = figures.graph(graph, profile, batch=4)
    colours = {layer: colour for layer, (_, _, colour, _) in nodes(figure).items()}
    assert colours == {n: pytest.approx(math.log10(4e-3 * 10**n)) for n in range(5)}
    bar = figure.layout.coloraxis
    assert bar.cmax == pytest.approx(math.log10(40))
    assert "10 ms" in bar.colorbar.ticktext
    assert bar.colorbar.title.text.startswith("forward + backward")


def test_without_a_profile_colours_are_parameters_and_layers_without_any_are_blank():
    figure = figures.graph(branches())
    colours = {layer: colour for layer, (_, _, colour, _) in nodes(figure).items()}
    assert colours[3] == pytest.approx(math.log10(100 * MIB))
    assert colours[2] is None
    (legend,) = [trace.name for trace in figure.data if trace.showlegend]
    assert legend == "no parameters"
    assert all("B" in text for text in figure.layout.coloraxis.colorbar.ticktext)


def test_output_is_what_a_reader_reads_once_and_the_last_layer_has_the_loss():
    figure = figures.graph(branches(), colour_by="output")
    colours = {layer: colour for layer, (_, _, colour, _) in nodes(figure).items()}
    assert colours == {
        0: pytest.approx(math.log10(1024)),
        1: pytest.approx(math.log10(2048)),
        2: pytest.approx(math.log10(512)),
        3: pytest.approx(math.log10(4096)),
        4: None,
    }


def test_hover_texts_state_operators_sizes_and_times():
    graph = branches()
    hover = nodes(figures.graph(graph, timed(graph), batch=1))[1][3]
    assert hover.split("<br>") == [
        "conv2d",
        "10.0 MiB of parameters",
        "output 2.0 KiB per sample",
        "saves 2 B per sample for the backward pass",
        "10 ms forward + 0 s backward at batch 1, 0.1 % of the iteration",
    ]


def test_the_subtitle_says_where_times_come_from_or_that_there_are_none():
    graph = branches()
    subtitle = figures.graph(graph, timed(graph)).layout.title.subtitle.text
    assert subtitle.startswith("<b>estimated</b> on drawn, fp32, batch 16:")
    assert "not profiled" in figures.graph(graph).layout.title.subtitle.text
    beyond = figures.graph(graph, timed(graph), batch=64)
    assert "batch 64, extrapolated" in beyond.layout.title.subtitle.text
    assert "(extrapolated)" in nodes(beyond)[0][3]


def test_a_batch_is_a_number_of_numpy_too():
    profile = timed(branches())
    assert figures.graph(profile.graph, profile, batch=np.int64(1000)) == figures.graph(
        profile.graph, profile, batch=1000
    )
    with pytest.raises(InvalidValueError, match="batch must be at least 1, got 0"):
        figures.graph(profile.graph, profile, batch=0)


def test_one_layer_is_told_in_the_singular():
    graph = make_graph([()])
    assert ": 1 layer, 1 distinct" in str(graph)
    assert figures.graph(graph).layout.title.text.endswith(", 1 layer by parameters")
    alone = plan(profile_from_times(graph, [lambda b: 1e-3 * b]), 1, 4)
    assert figures.plan_graph(alone).layout.title.text.endswith(" of 1 layer")


def test_names_are_shown_as_they_are():
    graph = branches()
    graph = replace(graph, layers=(replace(graph.layers[0], name="<b>"), *graph.layers[1:]))
    assert nodes(figures.graph(graph))[0][1] == "&lt;b&gt;"


@pytest.mark.parametrize("name", ["vgg16-cpu", "resnet50-cpu", "inception_v3-cpu", "wide_resnet101_2-cpu"])
@pytest.mark.parametrize("width", [None, 568, 368])
def test_no_label_of_a_real_model_runs_into_the_next_one(name, width):
    profile = find_profile(name)
    figure = figures.graph(profile.graph, profile, width=width)
    page = PAGE if width is None else width - MARGINS["l"] - MARGINS["r"]
    assert figure.layout.xaxis.range[1] == page
    rows = {}
    for (x, y), text, *_ in nodes(figure).values():
        rows.setdefault(y, []).append((x, text))
        assert x + 10 + CHARACTER * len(text) <= page
    for row in rows.values():
        for (x, text), (after, _) in itertools.pairwise(sorted(row)):
            assert x + 10 + CHARACTER * len(text) <= after - 6
    labels = [text for row in rows.values() for _, text in row]
    assert width or sum(bool(text) for text in labels) >= 0.9 * len(labels)


def test_a_deep_chain_is_set_in_columns():
    figure = figures.graph(make_graph([(index - 1,) if index else () for index in range(150)]))
    places = [place for place, *_ in nodes(figure).values()]
    assert len({x for x, _ in places}) == 4
    assert figure.layout.height < 45 * ROW
    # An edge that leaves a column at its foot goes on at the head of the next one.
    assert len(lines(figure)) == 149 + 3


def test_long_names_are_cut():
    graph = make_graph([()])
    graph = replace(graph, layers=(replace(graph.layers[0], name="a." * 60 + "conv"),))
    (text,) = (text for _, text, *_ in nodes(figures.graph(graph)).values())
    assert len(text) <= LONGEST
    assert text.endswith("conv")


def test_a_profile_of_another_graph_is_refused():
    graph = branches()
    other = make_graph([(), (0,)])
    with pytest.raises(
        InvalidValueError, match=r"the profile belongs to another graph, drawn .* 2 layers.*pass profile\.graph"
    ):
        figures.graph(graph, timed(other))
    with pytest.raises(InvalidValueError, match="time needs a profile, got 'time' without one"):
        figures.graph(graph, colour_by="time")
    with pytest.raises(InvalidValueError, match="graph must be a LayerGraph, got a Profile"):
        figures.graph(make_profile(graph, timed(graph).measurements))

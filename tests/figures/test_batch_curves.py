"""Layer times over the batch: points that were measured, the lines between them, the dashed one beyond."""

from dataclasses import replace

import numpy as np
import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.batch_curves import BEYOND, MOST
from deeppool.figures.formatting import escape
from deeppool.profiling.iteration_check import IterationCheck
from deeppool.profiling.table import Measurement
from tests.strategies import make_graph, make_profile

SIZES = (1, 4, 16)


def profile(layers=3, **changes):
    graph = make_graph([(index - 1,) if index else () for index in range(layers)])
    measurements = [
        Measurement(f"signature{n}", (0.001, 0.002, 0.008), (0.002, 0.003, 0.012), (0.1, 0.2, 0.05))
        for n in range(layers)
    ]
    return replace(make_profile(graph, measurements, SIZES), **changes)


def traces(figure, name):
    """The line between, the line beyond, the points."""
    found = [trace for trace in figure.data if trace.legendgroup == name]
    assert [trace.mode for trace in found] == ["lines", "lines", "markers"]
    return found


def test_points_are_the_profiles_own_with_their_spread():
    *_, points = traces(figures.batch_curves(profile(), [1]), "forward + backward")
    assert list(points.x) == [1, 4, 16]
    assert list(points.y) == pytest.approx([3, 5, 20])
    assert list(points.error_y.array) == pytest.approx([0.3, 1.0, 1.0])


def test_one_layer_is_forward_and_backward_in_their_colours():
    figure = figures.batch_curves(profile(), ["layer1"])
    for part, seconds in (("forward", [1, 2, 8]), ("backward", [2, 3, 12])):
        *_, points = traces(figure, part)
        assert list(points.y) == pytest.approx(seconds)
        assert points.marker.color == theme.colour(part)
    assert figure.layout.title.text == "layer1 of drawn"


def test_lines_pass_through_the_points_and_are_dashed_beyond_the_largest():
    made = profile()
    between, beyond, points = traces(figures.batch_curves(made, [0]), "forward + backward")
    for x, y in zip(points.x, points.y, strict=True):
        drawn = {x: y for line in (between, beyond) for x, y in zip(line.x, line.y, strict=True)}
        assert drawn[x] == pytest.approx(y)
    for line in (between, beyond):
        for x, y in zip(line.x, line.y, strict=True):
            assert y == pytest.approx(1e3 * made.time(0, x).total)
    assert (between.x[-1], beyond.x[0], beyond.x[-1]) == (16, 16, BEYOND * 16)
    assert (between.line.dash, beyond.line.dash) == ("solid", "dash")


def test_several_layers_are_reported_apart_by_symbol_and_shade():
    figure = figures.batch_curves(profile(MOST), range(MOST))
    points = [trace for trace in figure.data if trace.mode == "markers"]
    assert len({point.marker.symbol for point in points}) == MOST
    assert [point.name for point in points] == [f"layer{n}, estimated" for n in range(MOST)]


def test_long_names_that_differ_in_the_middle_are_told_apart():
    made = profile(3)
    names = [f"encoder.layers.<encoder_layer_{n}>.self_attention" for n in range(3)]
    layers = tuple(replace(layer, name=name) for layer, name in zip(made.graph.layers, names, strict=True))
    figure = figures.batch_curves(replace(made, graph=replace(made.graph, layers=layers)), [0, names[0], 1, 2])
    assert {trace.legendgroup for trace in figure.data} == set(names)
    entries = [trace for trace in figure.data if trace.showlegend is not False]
    assert len({entry.name for entry in entries}) == len(entries) == 3
    for name in names:
        for trace in traces(figure, name):
            assert trace.hovertemplate.startswith(f"<b>{escape(name)}</b>")


def test_no_layers_are_the_whole_iteration_beside_what_it_took():
    checks = tuple(IterationCheck(size, 1.0, 0.010 * size, 0.1, 5) for size in SIZES)
    figure = figures.batch_curves(profile(provenance="measured", checks=checks))
    *_, points = traces(figure, "sum of the layers")
    assert list(points.y) == pytest.approx([9, 15, 60])
    (whole,) = [trace for trace in figure.data if trace.name == "whole iteration, measured"]
    assert list(whole.y) == pytest.approx([10, 40, 160])
    assert list(whole.error_y.array) == pytest.approx([1, 4, 16])


@pytest.mark.parametrize(("provenance", "symbol"), [("measured", "circle"), ("estimated", "circle-open")])
def test_measured_and_estimated_look_different_and_are_named(provenance, symbol):
    figure = figures.batch_curves(profile(provenance=provenance), [0])
    *_, points = traces(figure, "forward + backward")
    assert points.marker.symbol == symbol
    assert points.name == f"forward + backward, {provenance}"
    assert figure.layout.title.subtitle.text.startswith(f"<b>{provenance}</b> on drawn")


def test_the_subtitle_says_how_well_the_dashed_line_is_known():
    # From 3 ms at 1 and 5 ms at 4, a line has 13 ms at 16, where 20 were measured.
    subtitle = figures.batch_curves(profile()).layout.title.subtitle.text
    assert "misses batch 16 by 35.0 % when fitted to 1 and 4" in subtitle.replace("<br>", " ")


def test_axes_have_units():
    figure = figures.batch_curves(profile(), [0])
    assert figure.layout.xaxis.title.text == "per-GPU batch (samples, log)"
    assert figure.layout.yaxis.title.text == "time (ms, log)"
    # Without a format, plotly writes 20 and 200 between powers of ten as "2".
    assert figure.layout.yaxis.tickformat == ",.4~r"
    assert list(figure.layout.xaxis.tickvals) == [1, 4, 16, 32]


def test_times_that_are_alike_have_ticks_between_them_too():
    assert figures.batch_curves(profile(), [0]).layout.yaxis.dtick == "D2"
    times = (61e-6, 65e-6, 63e-6)
    alike = make_profile(make_graph([()]), [Measurement("signature0", times, times, (0.0, 0.0, 0.0))], SIZES)
    # Plotly's own choice; of 1, 2 and 5 none lies between 122 and 130.
    assert figures.batch_curves(alike).layout.yaxis.dtick is None
    # With an error bar that reaches far.
    uncertain = make_profile(make_graph([()]), [Measurement("signature0", times, times, (0.0, 0.9, 0.0))], SIZES)
    assert figures.batch_curves(uncertain, [0]).layout.yaxis.dtick == "D2"


@pytest.mark.parametrize(
    ("layers", "phrase"),
    [
        (["conv"], r"drawn has no layer 'conv': it has 3, from layer0 to layer2"),
        ([3], "drawn has no layer 3"),
        ([-1], "drawn has no layer -1"),
        (np.arange(3, 4), "drawn has no layer 3:"),
        ([1.5], r"layers\[0\] must be a whole number or a str, got 1.5"),
    ],
)
def test_a_layer_that_is_not_there_is_named(layers, phrase):
    with pytest.raises(InvalidValueError, match=phrase):
        figures.batch_curves(profile(), layers)


def test_layers_are_numbers_and_names_of_numpy_too():
    drawn = figures.batch_curves(profile(), [0, 2])
    assert figures.batch_curves(profile(), np.array([0, 2])) == drawn
    assert figures.batch_curves(profile(), np.array(["layer0", "layer2"])) == drawn


def test_more_layers_than_can_be_told_apart_are_refused():
    with pytest.raises(InvalidValueError, match=f"at most {MOST} layers can be distinguished, got {MOST + 1}"):
        figures.batch_curves(profile(MOST + 1), range(MOST + 1))
    with pytest.raises(InvalidValueError, match="profile must be a Profile, got a LayerGraph"):
        figures.batch_curves(profile().graph)

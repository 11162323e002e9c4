"""A timeline's figure shows its spans: all of them, where and when they are, and what their times lean on."""

import html
import math
import re
import sys
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool import figures
from deeppool.base.timeline import Span, Timeline
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.timeline_rows import GROUPED_ABOVE, joined, panels_of, rows_of
from deeppool.simulation.plan.simulate import simulate
from tests.figures.records import layer, plan_of, run_of, timelines, two_layer_plan
from tests.sampling import examples

# A figure takes plotly some 20 ms.
few = examples(40)

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def axis_unit(figure):
    """Seconds per unit of the time axis, from its title."""
    title = next(axis.title.text for axis in figure.select_xaxes() if axis.title.text)
    return UNITS[title.rsplit("(", 1)[1].rstrip(")")]


def drawn_spans(figure):
    """What a reader would read off the bars: (label of the row, kind, name, start, duration)."""
    unit = axis_unit(figure)
    for bar in figure.data:
        axis = figure.layout["yaxis" + bar.yaxis[1:]]
        labels = dict(zip(axis.tickvals, axis.ticktext, strict=True))
        for y, base, x, custom in zip(bar.y, bar.base, bar.x, bar.customdata, strict=True):
            yield labels[y], bar.name, html.unescape(custom[0]), round(base * unit, 9), round(x * unit, 9)


def headings(figure):
    return [annotation.text for annotation in figure.layout.annotations]


@few
@given(timelines())
def test_the_bars_are_the_spans(timeline):
    expected = Counter(
        (f"GPU {span.gpu}", span.kind, span.name, round(span.start, 9), round(span.duration, 9))
        for span in timeline.spans
    )
    assert Counter(drawn_spans(figures.timeline(timeline))) == expected


@few
@given(timelines())
def test_each_kind_is_one_trace_in_its_colour(timeline):
    figure = figures.timeline(timeline)
    assert Counter(bar.name for bar in figure.data) == Counter({span.kind for span in timeline.spans})
    assert all(bar.marker.color == theme.colour(bar.name) for bar in figure.data)


@few
@given(timelines())
def test_bars_of_one_row_never_hide_one_another(timeline):
    boxes = defaultdict(list)
    for bar in figures.timeline(timeline).data:
        lane = (bar.offset, bar.offset + bar.width)
        assert -0.5 < lane[0] < lane[1] < 0.5
        for y, base, x in zip(bar.y, bar.base, bar.x, strict=True):
            boxes[y].append((base, base + x, *lane))
    for row in boxes.values():
        for index, (start, end, low, high) in enumerate(row):
            for other in row[index + 1 :]:
                shared = min(end, other[1]) - max(start, other[0])
                assert shared < 1e-6 or high <= other[2] or other[3] <= low


@pytest.mark.parametrize("kind", ["sync", "reshard"])
def test_transfers_beside_computing_do_not_hide_it(kind):
    """As all-reduces beside the backward pass that computes the gradients of the layers before."""
    ends_late = Span(0, kind, "a moment too long", 1.0, 2.0 + 1e-6)
    after = (Span(0, "backward", "b", 0.0, 1.0), ends_late, Span(0, "forward", "b", 2.0, 3.0))
    assert len({(bar.offset, bar.width) for bar in figures.timeline(Timeline("one", "predicted", 1, after)).data}) == 1
    beside = (Span(0, "backward", "b", 0.0, 2.0), Span(0, kind, "c", 0.5, 0.8), Span(0, kind, "d", 0.6, 1.5))
    computing, transfers = figures.timeline(Timeline("one", "predicted", 1, beside)).data
    assert computing.offset + computing.width <= transfers.offset


def test_a_plan_is_replayed_and_says_what_it_leans_on():
    plan = two_layer_plan()
    assert list(drawn_spans(figures.timeline(plan))) == list(drawn_spans(figures.timeline(simulate(plan))))
    assert headings(figures.timeline(plan)) == [
        "<b>predicted</b> from measured layer times (Test CPU); transfers computed from the links of<br>"
        "dgx-a100; nothing overlaps the all-reduces"
        "<br>tiny, batch 64, limit 2: 46 ms, foreground holds 76 % of GPU time"
    ]


def test_headings_fit_as_subtitles_do_and_have_room_above_their_panels():
    for sources in ([two_layer_plan()], [run_of()], [run_of(), two_layer_plan()]):
        figure = figures.timeline(*sources)
        height = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
        domains = [axis.domain for axis in figure.select_yaxes()]
        above = [figure.layout.margin.t] + [height * (high[0] - low[1]) for high, low in pairwise(domains)]
        for text, room in zip(headings(figure), above, strict=True):
            lines = text.split("<br>")
            assert max(len(re.sub("<[^>]+>", "", line)) for line in lines) <= theme.SUBTITLE_WIDTH
            assert room >= 15 * len(lines) + 20


@pytest.mark.parametrize(("seconds", "share"), [(0.9, "90"), (0.996, "100"), (0.0041, "0.4"), (0.00006, "0.006")])
def test_a_share_below_one_percent_is_not_none(seconds, share):
    spans = (Span(0, "forward", "a", 0.0, seconds), Span(0, "idle", "", seconds, 1.0))
    (heading,) = headings(figures.timeline(Timeline("one", "measured", 1, spans)))
    assert heading.endswith(f"foreground holds {share} % of GPU time")


def test_a_transfer_beside_computing_holds_the_gpu_once():
    spans = (Span(0, "backward", "a", 0.0, 0.6), Span(0, "sync", "a", 0.2, 0.8), Span(0, "update", "a", 0.9, 1.0))
    (heading,) = headings(figures.timeline(Timeline("one", "measured", 1, spans)))
    # 0 to 0.8 and 0.9 to 1: sums of the spans would be 130 %.
    assert heading.endswith("foreground holds 90 % of GPU time")


def test_a_hover_text_names_layer_kind_gpu_start_and_duration():
    bar = next(bar for bar in figures.timeline(two_layer_plan()).data if bar.name == "backward")
    text = bar.hovertemplate
    for index, part in enumerate(bar.customdata[1]):
        text = text.replace(f"%{{customdata[{index}]}}", part)
    assert text == ("<b>conv</b><br>backward on GPU 0, predicted<br>starts at 25 ms, takes 20 ms<extra></extra>")


def test_a_run_draws_its_prediction_above_its_measurement_on_one_time_axis():
    run = run_of()
    figure = figures.timeline(run)
    assert [text.split("</b>")[0] for text in headings(figure)] == ["<b>predicted", "<b>measured"]
    upper, lower = figure.layout.yaxis.domain, figure.layout.yaxis2.domain
    assert upper[0] > lower[1]
    assert {bar.yaxis for bar in figure.data if "measured" in bar.hovertemplate} == {"y2"}
    assert figure.layout.xaxis.matches == "x2"
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range
    assert figure.layout.xaxis.range[1] * axis_unit(figure) >= run.timeline.duration


def test_iterations_of_unlike_lengths_end_at_100_percent_each_on_its_own_axis():
    short, long = (
        Timeline(f"{x} s", "measured", 1, (Span(0, "forward", "conv", 0.0, x / 2), Span(0, "sync", "", x / 2, x)))
        for x in (0.007, 0.26)
    )
    figure = figures.timeline(short, long, relative=True)
    ends = {
        bar.xaxis: max(a + b for a, b in zip(bar.base, bar.x, strict=True)) for bar in figure.data if bar.name == "sync"
    }
    assert ends == {"x": pytest.approx(100), "x2": pytest.approx(100)}
    assert "%" in figure.layout.xaxis2.title.text
    starts, takes = figure.data[0].customdata[0][2:]
    assert (starts, takes) == ("0 s", "3.5 ms")
    half = figures.timeline(short, long, relative=True, window=(0.5, 1.0))
    assert half.layout.xaxis.range == pytest.approx((50, 100))
    assert half.layout.xaxis2.range == pytest.approx((50, 100))


def test_the_legend_names_each_kind_once_in_the_order_of_kinds():
    figure = figures.timeline(run_of(), two_layer_plan())
    named = sorted((bar.legendrank, bar.name) for bar in figure.data if bar.showlegend)
    kinds = {bar.name for bar in figure.data}
    assert [name for _, name in named] == [kind for kind in theme.KINDS if kind in kinds]


@pytest.mark.parametrize(("seconds", "unit"), [(2.0, "(s)"), (0.2, "(ms)"), (2e-5, "(us)")])
def test_the_time_axis_has_a_unit_that_suits(seconds, unit):
    figure = figures.timeline(Timeline("t", "measured", 1, (Span(0, "forward", "conv", 0.0, seconds),)))
    assert figure.layout.xaxis.title.text.endswith(unit)
    assert figure.data[0].customdata[0][3] == f"{seconds / UNITS[unit[1:-1]]:.3g} {unit[1:-1]}"


def test_gpus_run_down_from_zero():
    axis = figures.timeline(two_layer_plan()).layout.yaxis
    assert list(axis.ticktext) == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
    assert axis.range[0] > axis.range[1]


def test_few_gpus_each_keep_a_row():
    rows = rows_of(simulate(two_layer_plan(gpus=GROUPED_ABOVE)).timeline)
    assert [row.gpus for row in rows] == [(gpu,) for gpu in range(GROUPED_ABOVE)]


def test_many_gpus_that_do_the_same_share_a_row():
    plan = plan_of(layer("conv", 64, forward=1.0), layer("mid", 8, forward=1.0), layer("fc", 1, forward=1.0), gpus=64)
    timeline = simulate(plan).timeline
    rows = rows_of(timeline)
    assert [row.label for row in rows] == ["GPU 0", "GPU 1–7", "GPU 8–63"]
    for row in rows:
        for gpu in row.gpus:
            mine = [(s.kind, s.name, s.start, s.end) for s in timeline.spans if s.gpu == gpu]
            assert mine == [(s.kind, s.name, s.start, s.end) for s in row.spans]
    assert list(figures.timeline(plan).layout.yaxis.ticktext) == ["GPU 0", "GPU 1–7", "GPU 8–63"]


def test_a_gpu_without_spans_keeps_its_row():
    timeline = Timeline("t", "measured", 3, (Span(1, "forward", "conv", 0.0, 1.0),))
    assert list(figures.timeline(timeline).layout.yaxis.ticktext) == ["GPU 0", "GPU 1", "GPU 2"]


@pytest.mark.slow
@given(timelines())
def test_joining_slivers_keeps_the_time_of_every_kind(timeline):
    for row in rows_of(timeline):
        chain = tuple(span for span in row.spans if span.kind != "background")
        after = joined(chain, thinnest=math.inf)
        assert all(one.kind != two.kind for one, two in pairwise(after))
        for kind in theme.KINDS:
            gone = sum(s.duration for s in chain if s.kind == kind)
            assert sum(s.duration for s in after if s.kind == kind) >= gone - 1e-9


def test_joined_slivers_are_named_after_the_first_and_the_last():
    chain = tuple(Span(0, "forward", name, start, start + 1.0) for start, name in enumerate("abcd"))
    wide = Span(0, "forward", "wide", 4.0, 9.0)
    assert joined((*chain, wide), thinnest=3.5) == (Span(0, "forward", "a … d", 0.0, 4.0), wide)
    assert joined((*chain, wide), thinnest=0.5) == (*chain, wide)
    assert joined((chain[3], wide), thinnest=3.5) == (chain[3], wide)


def test_slivers_are_joined_only_where_bars_are_too_many_to_draw(monkeypatch):
    spans = tuple(Span(0, "forward", f"l{i}", i * 1e-4, (i + 1) * 1e-4) for i in range(10))
    timeline = Timeline("t", "measured", 1, (*spans, Span(0, "forward", "long", 1e-3, 1.0)))
    assert len(list(drawn_spans(figures.timeline(timeline)))) == 11
    # By the module's name in sys.modules: deeppool.figures.timeline as an attribute is the function.
    monkeypatch.setattr(sys.modules["deeppool.figures.timeline"], "MOST_BARS", 10)
    drawn = list(drawn_spans(figures.timeline(timeline)))
    assert [(name, duration) for *_, name, _, duration in drawn] == [("l0 … l9", 1e-3), ("long", 0.999)]


def test_eight_gpus_of_a_deep_network_stay_few_traces():
    plan = plan_of(*[layer(f"l{i}", 8, forward=0.001, backward=0.002, sync=1e-4) for i in range(130)], gpus=8)
    figure = figures.timeline(plan)
    assert len(figure.data) <= len(theme.KINDS)
    assert sum(len(bar.x) for bar in figure.data) == 8 * 130 * 3


def test_a_name_in_angle_brackets_is_shown():
    timeline = Timeline("task:<lambda>", "measured", 1, (Span(0, "forward", "<locals>", 0.0, 1.0),))
    figure = figures.timeline(timeline, title="<b>")
    assert "task:&lt;lambda&gt;" in headings(figure)[0]
    assert figure.data[0].customdata[0][0] == "&lt;locals&gt;"
    assert figure.layout.title.text == "&lt;b&gt;"


def test_the_dark_variant_differs_only_in_what_lies_behind():
    light, dark = figures.timeline(two_layer_plan()), figures.timeline(two_layer_plan(), dark=True)
    assert list(drawn_spans(light)) == list(drawn_spans(dark))
    colours = {
        bar.name: (bar.marker.color, other.marker.color) for bar, other in zip(light.data, dark.data, strict=True)
    }
    assert {kind for kind, (one, other) in colours.items() if one != other} == {"idle"}
    assert dark.layout.template.layout.paper_bgcolor == theme.paper(dark=True)


@pytest.mark.parametrize("source", ["vgg16", None, 3])
def test_what_cannot_be_drawn_is_answered_with_what_can(source):
    accepted = "a Plan, a Simulation, a RunRecord, a Timeline or a TimelinePanel"
    with pytest.raises(InvalidValueError, match=rf"sources\[0\] must be {accepted}, got {source!r}"):
        figures.timeline(source)


@pytest.mark.parametrize("sources", [(), (Timeline("t", "measured", 0, ()),)])
def test_nothing_to_draw_is_an_error(sources):
    with pytest.raises(InvalidValueError, match="no GPU to draw"):
        figures.timeline(*sources)


def test_a_window_shows_the_spans_in_it_and_a_width_beside_it():
    spans = tuple(Span(0, "forward", f"l{index}", float(index), index + 1.0) for index in range(100))
    figure = figures.timeline(Timeline("t", "measured", 1, spans), window=(40.0, 45.0))
    assert list(figure.layout.xaxis.range) == [40.0, 45.0]
    assert figures.timeline(Timeline("t", "measured", 1, spans), window=np.array([40, 45])) == figure
    names = [name for *_, name, _, _ in drawn_spans(figure)]
    assert names == [f"l{index}" for index in range(34, 51)]


def test_names_appear_where_a_window_makes_room_for_them():
    spans = (Span(0, "forward", "a layer", 0.0, 0.01), Span(0, "backward", "a layer", 0.01, 10.0))
    timeline = Timeline("t", "measured", 1, spans)
    assert [bar.text for bar in figures.timeline(timeline).data] == [("",), ("a layer",)]
    assert figures.timeline(timeline, window=(0.0, 0.02)).data[0].text == ("a layer",)


@few
@given(timelines(), st.sets(st.sampled_from(theme.KINDS)))
def test_only_the_kinds_that_were_asked_for_are_drawn(timeline, kinds):
    figure = figures.timeline(timeline, kinds=kinds)
    assert {bar.name for bar in figure.data} == kinds & {span.kind for span in timeline.spans}
    assert len(figure.layout.yaxis.tickvals) == timeline.gpus


def test_a_window_must_have_a_width():
    with pytest.raises(InvalidValueError, match="window must start before it ends, got 2 s to 1 s"):
        figures.timeline(two_layer_plan(), window=(2.0, 1.0))
    with pytest.raises(InvalidValueError, match="window must be a number, got '1'"):
        figures.timeline(two_layer_plan(), window=("1", "2"))


@few
@given(timelines(max_gpus=3))
def test_a_panel_keeps_the_whole_record(timeline):
    (panel,) = panels_of(timeline)
    assert panel.duration == timeline.duration
    held = sum(span.duration for span in timeline.spans if span.kind not in ("idle", "background"))
    assert panel.gpu_seconds == pytest.approx(held)
    assert Counter(panel.timeline.spans) == Counter(timeline.spans)
    assert (panel.timeline.gpus, panel.timeline.provenance) == (timeline.gpus, timeline.provenance)


def test_a_plan_on_many_gpus_is_drawn_as_its_simulation_is():
    plan = plan_of(layer("conv", 64, forward=1.0), layer("mid", 8, forward=1.0), layer("fc", 1, forward=1.0), gpus=96)
    (panel,) = panels_of(plan)
    assert list(panel.rows) == rows_of(simulate(plan).timeline)
    assert Counter(panel.timeline.spans) == Counter(simulate(plan).timeline.spans)

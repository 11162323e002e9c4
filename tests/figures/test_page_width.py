"""Texts of figures on narrow pages: wrapped, above one another, and as they were where there is room again."""

import functools
import re
from html import unescape

import plotly.graph_objects as go
import pytest

import deeppool as dp
from deeppool.figures import theme
from deeppool.figures.page_width import CHARACTER, MARGIN, TITLE_RAISE, page_layout, page_layouts
from tests.figures.records import run_of, two_layer_plan

WIDE = 3000


FIGURES = {
    "timeline": lambda: dp.figures.timeline(run_of()),
    "layers": lambda: dp.figures.layers(two_layer_plan()),
    "curves": lambda: dp.figures.batch_curves(dp.find_profile("vgg16-cpu")),
    "collocation": lambda: dp.figures.collocation(run_of()),
}


@functools.cache
def figure_of(name: str) -> go.Figure:
    """A figure that no test changes."""
    return FIGURES[name]()


def fitted(figure: go.Figure, width: int) -> go.Figure:
    return go.Figure(figure).update_layout(page_layout(figure, width) or {})


def heights(figure: go.Figure) -> list[float]:
    """Pixels of each panel."""
    layout = figure.layout
    whole = layout.height - layout.margin.t - layout.margin.b
    axes = [layout[name] for name in layout if name.startswith("yaxis") and layout[name].domain is not None]
    return [(axis.domain[1] - axis.domain[0]) * whole for axis in axes]


def headings(figure: go.Figure) -> list[str]:
    return [each.text for each in figure.layout.annotations if each.align == "left"]


def words(text: str | None) -> list[str]:
    return unescape(re.sub("<br>", " ", text or "")).split()


@pytest.mark.parametrize("width", [360, 500, 640, 760])
@pytest.mark.parametrize("name", FIGURES)
def test_no_line_is_longer_than_the_page_and_no_word_is_lost(name: str, width: int) -> None:
    before = figure_of(name)
    after = fitted(before, width)
    for text in (after.layout.title.subtitle.text, *headings(after)):
        for line in (text or "").split("<br>"):
            assert CHARACTER * len(re.sub(r"<[^>]+>", "", line)) <= width - MARGIN, line
    assert words(after.layout.title.text) == words(before.layout.title.text)
    assert words(after.layout.title.subtitle.text) == words(before.layout.title.subtitle.text)
    assert list(map(words, headings(after))) == list(map(words, headings(before)))


@pytest.mark.parametrize("name", FIGURES)
def test_panels_keep_their_heights_while_the_figure_grows(name: str) -> None:
    before = figure_of(name)
    after = fitted(before, 360)
    assert after.layout.height > before.layout.height
    assert heights(after) == pytest.approx(heights(before), abs=0.5)


def test_the_title_of_an_axis_is_wrapped_below_panels_that_stay_where_they_are() -> None:
    before = figure_of("timeline")
    after = fitted(before, 330)
    title = after.layout.xaxis2.title.text
    assert words(title) == words("time from the start of the iteration (ms)")
    # Plotly writes it in 14 pixels, of which a character takes half on average, and cuts it at the figure's end.
    assert max(map(len, title.split("<br>"))) * 7 < 330 - MARGIN
    assert title.count("<br>") == 1
    assert after.layout.margin.b - before.layout.margin.b >= 14
    assert fitted(after, WIDE).layout.xaxis2.title.text == before.layout.xaxis2.title.text
    assert fitted(after, WIDE).layout.margin.b == before.layout.margin.b


def test_headings_stay_at_their_panels_and_do_not_reach_into_the_panel_above() -> None:
    after = fitted(figure_of("timeline"), 360)
    layout = after.layout
    whole = layout.height - layout.margin.t - layout.margin.b
    upper, lower = layout.yaxis.domain, layout.yaxis2.domain
    first, second = (each for each in layout.annotations if each.align == "left")
    assert (first.y, second.y) == (pytest.approx(upper[1]), pytest.approx(lower[1]))
    # Twelve pixels of a font take fifteen with the space between lines.
    assert (upper[0] - lower[1]) * whole >= 15 * (second.text.count("<br>") + 1)
    legend_rows = 3
    above = layout.margin.t - 15 * (first.text.count("<br>") + 1)
    assert above >= (1 - layout.legend.y) * layout.height + 19 * legend_rows - 19


@pytest.mark.parametrize("width", [360, 500, 760, WIDE])
def test_headings_of_panels_side_by_side_are_not_cut_and_do_not_overlap(width: int) -> None:
    before = figure_of("collocation")
    after = fitted(before, width)
    ends = []
    for each, original in zip(after.layout.annotations, before.layout.annotations, strict=True):
        assert words(each.text) == words(original.text)
        # Their font has 14 pixels, that of the other texts 12.
        half = CHARACTER * 14 / 12 * max(map(len, each.text.split("<br>"))) / 2
        ends += [each.x * (width - MARGIN) - half, each.x * (width - MARGIN) + half]
    assert [0, *ends, width - MARGIN] == sorted([0, *ends, width - MARGIN])


def test_headings_of_panels_side_by_side_do_not_reach_into_the_legend() -> None:
    layout = fitted(figure_of("collocation"), 360).layout
    lines, legend_rows = 3, 5
    assert {each.text.count("<br>") + 1 for each in layout.annotations} == {lines}
    assert layout.margin.t - 17 * lines >= (1 - layout.legend.y) * layout.height + 19 * legend_rows - 19


def test_a_figure_is_fitted_again_from_what_it_was() -> None:
    before = figure_of("timeline")
    narrow = fitted(before, 360)
    again = fitted(narrow, WIDE)
    for name in ("height", "margin", "annotations", "yaxis", "yaxis2"):
        assert again.layout[name] == before.layout[name], name
    assert again.layout.title.text == before.layout.title.text
    assert fitted(again, 360).layout == narrow.layout


def test_what_has_room_is_left_alone() -> None:
    for name in FIGURES:
        assert page_layout(figure_of(name), WIDE) is None
    assert page_layout(go.Figure(), 360) is None
    assert page_layout(go.Figure(layout={"height": 400}), 360) is None


def test_long_categories_leave_less_room_for_the_texts() -> None:
    def room(*names: str) -> float:
        bars = go.Figure(go.Bar(orientation="h", x=[1, 2], y=names))
        figure = theme.apply_theme(bars, title="Bars", subtitle="word " * 40, plot_height=200)
        lines = fitted(figure, 480).layout.title.subtitle.text.split("<br>")
        return max(map(len, lines)) * CHARACTER

    assert 300 < room("a", "b") <= 480 - MARGIN
    assert room("a", "a category of thirty letters xx") <= 480 - MARGIN - (7.4 * 31 + 20 - 64)


def test_long_names_of_rows_leave_less_room_for_the_texts() -> None:
    before = figure_of("timeline")
    long = go.Figure(before).update_yaxes(ticktext=["GPU 10240–20479", "GPU 20480–40959"])
    for width in (360, 480, 640):
        room = width - MARGIN - (7.4 * len("GPU 10240–20479") + 20 - 64)
        for heading in headings(fitted(long, width)):
            for line in heading.split("<br>"):
                assert CHARACTER * len(re.sub(r"<[^>]+>", "", line)) <= max(room, 80), line
    # The legend needs a row more.
    assert fitted(long, 640).layout.margin.t > fitted(before, 640).layout.margin.t


@pytest.mark.parametrize("width", [360, 500, 640])
def test_headings_that_were_wrapped_already_have_no_lines_that_end_early(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = dp.figures.timeline(two_layer_plan())
    monkeypatch.setattr(theme, "SUBTITLE_WIDTH", 1000)
    whole = dp.figures.timeline(two_layer_plan())
    assert headings(wrapped) != headings(whole)
    assert headings(fitted(wrapped, width)) == headings(fitted(whole, width))
    assert fitted(wrapped, width).layout.height == fitted(whole, width).layout.height


@pytest.mark.parametrize("name", FIGURES)
def test_the_layouts_of_a_page_without_a_kernel_are_those_of_each_width(name: str) -> None:
    figure, widths = figure_of(name), (2000, 360, 640)
    before = figure.to_plotly_json()
    layouts = page_layouts(figure, widths)
    assert list(layouts) == sorted(widths)
    assert figure.to_plotly_json() == before
    shown = go.Figure(figure)
    for width in (360, 2000, 640, 360):
        # What plotly.js does: paths name a property, and what they do not name stays.
        shown.update_layout({path.replace(".", "_"): value for path, value in layouts[width].items()})
        expected = fitted(figure, width)
        assert shown.layout.to_plotly_json() | {"meta": None} == expected.layout.to_plotly_json() | {"meta": None}


def test_a_page_without_a_kernel_leaves_what_has_room_everywhere() -> None:
    assert (
        page_layouts(go.Figure(layout={"title": {"text": "short"}, "height": 300, "margin": {"t": 60, "b": 40}}), [600])
        == {}
    )


def test_plotly_raises_a_title_of_several_lines_by_as_much_however_many_they_are() -> None:
    figure = dp.figures.layers(two_layer_plan())

    def pixels(shown: go.Figure) -> float:
        return (1 - shown.layout.title.y) * shown.layout.height

    narrow = [fitted(figure, width) for width in (300, 180)]
    assert [each.layout.title.text.count("<br>") for each in narrow] == [1, 3]
    assert [pixels(each) - pixels(figure) for each in narrow] == pytest.approx([TITLE_RAISE] * 2)

"""The HTML page of records in a browser without a kernel: texts of figures follow the width of the window."""

from pathlib import Path

from deeppool.figures.record_page import record_page
from tests.browser.lab import Lab
from tests.figures.records import run_of, two_layer_plan

MEASURE = """[...document.querySelectorAll('.js-plotly-plot')].map(plot => {
    const page = plot.getBoundingClientRect();
    const texts = [...plot.querySelectorAll('.gtitle, .gtitle-subtitle, .annotation-text, .legendtext')];
    return {
        drawn: plot._fullLayout?.width, width: page.width, bottom: page.bottom, height: plot._fullLayout?.height,
        right: Math.max(...texts.map(text => text.getBoundingClientRect().right)) - page.left,
        below: plot.closest('section').querySelector('.dp-text').getBoundingClientRect().top,
    };
})"""


def test_figures_of_a_page_are_fitted_to_its_width_and_grow_above_what_is_below(lab: Lab, tmp_path: Path) -> None:
    text = record_page("records", [("run", run_of()), ("plan", two_layer_plan())])
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page = lab.browser.new_page()
    heights = {}
    for width in (1300, 600, 420, 1300):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto((tmp_path / "page.html").as_uri()) if not heights else None
        page.wait_for_function(
            f"{MEASURE}.every(each => Math.abs(each.drawn - each.width) < 1 && each.right <= each.width + 1"
            " && Math.abs(each.bottom - each.below) < 2)"
        )
        found = tuple(each["height"] for each in page.evaluate(MEASURE))
        assert heights.setdefault(width, found) == found
    assert all(a < b for a, b in zip(heights[1300], heights[420], strict=True))
    page.close()

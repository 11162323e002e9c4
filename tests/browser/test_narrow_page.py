"""Panels on a page of 700 pixels, beside JupyterLab's open sidebar: nothing is cut, and nothing scrolls sideways."""

from typing import Any

import pytest
from playwright.sync_api import Locator

from tests.browser.lab import HEIGHT, Lab
from tests.browser.notebook import Notebook

NARROW = 700
PANELS = {
    "dp-collocation-panel": "dp.widgets.CollocationPanel(dp.plan(profile, 2, 16))",
    "dp-timeline-view": (
        "dp.widgets.TimelineView(*[dp.plan(dp.find_profile('vgg16-h200'), gpus, 256, 4.0) for gpus in (8, 64)])"
    ),
    "dp-profile-panel": "dp.widgets.ProfilePanel(profile)",
    "dp-amplification-explorer": "dp.widgets.AmplificationExplorer(profile, gpus=4)",
}
TEXTS = """panel => [...panel.querySelectorAll('.js-plotly-plot')].flatMap(plot => {
    const page = plot.getBoundingClientRect();
    const texts = '.gtitle, .gtitle-subtitle, .annotation-text, .legendtext, .xtitle, .x2title, .x3title';
    return [...plot.querySelectorAll(texts)].map(text => {
        const box = text.getBoundingClientRect();
        return {text: text.textContent, left: box.left - page.left, over: box.right - page.right, top: box.top,
                bottom: box.bottom, kind: text.classList[0]};
    }).filter(text => text.text.trim());
})"""

FIELDS_CUT = """panel => {
    const right = panel.getBoundingClientRect().right;
    return [...panel.querySelectorAll('input, select')].filter(field => field.offsetParent)
        .filter(field => field.getBoundingClientRect().right > right).map(field => field.outerHTML);
}"""
FIELDS_LOW = """panel => {
    const height = parseFloat(getComputedStyle(panel).getPropertyValue('--jp-widgets-inline-height'));
    return [...panel.querySelectorAll('input[type=text], select:not([size])')].filter(field => field.offsetParent)
        .filter(field => !(field.getBoundingClientRect().height >= height)).map(field => field.outerHTML);
}"""
TITLES = """panel => [...panel.querySelectorAll('.js-plotly-plot')].flatMap(plot => {
    const page = plot.getBoundingClientRect().top;
    const boxes = kind => [...plot.querySelectorAll(kind)].map(text => text.getBoundingClientRect())
        .filter(box => box.height);
    const titles = boxes('.gtitle, .gtitle-subtitle'), entries = boxes('.legendtext');
    return !titles.length ? [] : [[{top: titles[0].top - page, bottom: Math.max(...titles.map(box => box.bottom))},
            entries.length ? Math.min(...entries.map(box => box.top)) : null]];
})"""
PICKER = "dp.widgets.ModelPicker(nn.Sequential(*[nn.Linear(4, 4) for _ in range(60)]), (4,))"
LONG = "_".join(["no_model_has_a_name"] * 12)
IS_AS_WIDE_AS_ITS_PAGE = """panel => {
    const plot = panel.querySelector('.js-plotly-plot'), width = plot?.clientWidth;
    if (!width || plot._fullLayout?.width !== width) return false;
    // The kernel has laid it out for the panel's width, in steps of 20 pixels.
    const between = width - 108 - plot._fullLayout.xaxis.range[1];
    return between >= 0 && between < 22;
}"""


def test_no_text_is_cut_and_no_table_scrolls_sideways(lab: Lab, subtests: pytest.Subtests) -> None:
    profile = "import deeppool as dp\nprofile = dp.find_profile('vgg16-cpu')"
    notebook = lab.open_shared([profile, *PANELS.values()], seconds=300)
    notebook.page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    for panel in PANELS:
        with subtests.test(panel=panel):
            check_fits(notebook, notebook.panel(f".{panel}"))


def test_the_end_of_a_run_is_told_in_full(lab: Lab) -> None:
    notebook = lab.open_shared(["import deeppool as dp", f"dp.start(dp.capture, '{LONG}')"], seconds=300)
    notebook.page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    panel = notebook.panel(".dp-run-panel")
    notebook.until(lambda: "failed after" in panel.inner_text())
    assert "'" + LONG + "'" in panel.inner_text()
    status = panel.locator(".dp-status")
    assert status.evaluate("it => it.scrollWidth <= it.clientWidth + 1 && it.scrollHeight <= it.clientHeight + 1")
    assert panel.evaluate("panel => panel.scrollWidth <= panel.clientWidth + 1")


def test_a_figure_in_a_scrolled_frame_follows_each_change_of_the_width(lab: Lab) -> None:
    notebook = lab.open_shared(["import deeppool as dp\nfrom torch import nn", PICKER], seconds=300)
    panel = notebook.panel(".dp-model-picker")
    # The figure's height changes with its width, that of its frame does not.
    for width in (1000, NARROW, 600, NARROW, 1000):
        notebook.page.set_viewport_size({"width": width, "height": HEIGHT})
        notebook.until(lambda: panel.evaluate(IS_AS_WIDE_AS_ITS_PAGE), seconds=20)
        assert panel.locator(".widget-hprogress .progress").bounding_box()["height"] > 10


def check_fits(notebook: Notebook, panel: Locator) -> None:
    """No text of its figures is cut or in a legend that has a heading, and nothing in it scrolls sideways."""

    def cut() -> list[dict[str, Any]]:
        texts = panel.evaluate(TEXTS)
        return [] if not texts else [text for text in texts if text["over"] > 0 or text["left"] < 0]

    assert panel.evaluate(FIELDS_CUT) == []
    assert panel.evaluate(FIELDS_LOW) == []
    if panel.locator(".js-plotly-plot").count():
        notebook.until(lambda: panel.evaluate(TEXTS) and not cut())
    # A legend has no heading in it.
    texts = panel.evaluate(TEXTS)
    entries = [text for text in texts if text["kind"] == "legendtext"]
    for heading in (text for text in texts if text["kind"] == "annotation-text"):
        assert not any(heading["top"] < each["top"] < heading["bottom"] - 1 for each in entries), heading["text"]
    for above, below in panel.evaluate(TITLES):
        assert above["top"] < 16
        assert below is None or above["bottom"] <= below + 1
    for table in panel.locator(".dp-table").all():
        assert table.evaluate("table => table.scrollWidth <= table.clientWidth")
    assert panel.evaluate("panel => panel.scrollWidth <= panel.clientWidth + 1")

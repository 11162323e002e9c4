"""Panels on a page of 800 pixels, beside JupyterLab's open sidebar: nothing is cut, and nothing scrolls sideways."""

from typing import Any

import pytest
from playwright.sync_api import Locator

from tests.browser.lab import HEIGHT, Lab
from tests.browser.notebook import Notebook

NARROW = 800
PANELS = {
    "dp-timeline-view": "dp.widgets.TimelineView(dp.plan(profile, 8, 64, 2.0), dp.plan(profile, 2, 64))",
    "dp-profile-panel": "dp.widgets.ProfilePanel(profile)",
    "dp-amplification-explorer": "dp.widgets.AmplificationExplorer(profile, gpus=4)",
}
TEXTS = """panel => [...panel.querySelectorAll('.js-plotly-plot')].flatMap(plot => {
    const page = plot.getBoundingClientRect();
    return [...plot.querySelectorAll('.gtitle, .gtitle-subtitle, .annotation-text, .legendtext')].map(text => {
        const box = text.getBoundingClientRect();
        return {text: text.textContent, left: box.left - page.left, over: box.right - page.right, top: box.top,
                bottom: box.bottom, kind: text.classList[0]};
    }).filter(text => text.text.trim());
})"""


def test_no_text_is_cut_and_no_table_scrolls_sideways(lab: Lab, subtests: pytest.Subtests) -> None:
    profile = "import deeppool as dp\nprofile = dp.find_profile('vgg16-cpu')"
    notebook = lab.open_shared([profile, *PANELS.values()], seconds=300)
    notebook.page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    for panel in PANELS:
        with subtests.test(panel=panel):
            check_fits(notebook, notebook.panel(f".{panel}"))


def check_fits(notebook: Notebook, panel: Locator) -> None:
    """No text of its figures is cut or in a legend that has a heading, and nothing in it scrolls sideways."""

    def cut() -> list[dict[str, Any]]:
        texts = panel.evaluate(TEXTS)
        return [] if not texts else [text for text in texts if text["over"] > 0 or text["left"] < 0]

    notebook.until(lambda: panel.evaluate(TEXTS) and not cut())
    # A legend has no heading in it.
    texts = panel.evaluate(TEXTS)
    entries = [text for text in texts if text["kind"] == "legendtext"]
    for heading in (text for text in texts if text["kind"] == "annotation-text"):
        assert not any(heading["top"] < each["top"] < heading["bottom"] - 1 for each in entries), heading["text"]
    for table in panel.locator(".dp-table").all():
        assert table.evaluate("table => table.scrollWidth <= table.clientWidth")
    assert panel.evaluate("panel => panel.scrollWidth <= panel.clientWidth + 1")

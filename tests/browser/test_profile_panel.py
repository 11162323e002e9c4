"""The profile panel in a real page: a table sorted and chosen from by keyboard, a measurement started and cancelled."""

import pytest
from playwright.sync_api import Locator

from tests.browser.lab import Lab

CELLS = [
    "import deeppool as dp",
    "shipped = dp.widgets.ProfilePanel(dp.find_profile('vgg16-cpu'))\nshipped",
    "live = dp.widgets.ProfilePanel(dp.capture('alexnet', (3, 64, 64)), batch_sizes=(1, 2, 4, 8, 16, 32, 64),"
    " output='alexnet.json')\nlive",
]


def column(panel: Locator, index: int) -> list[str]:
    return panel.locator(f".dp-table tbody td:nth-child({index + 1})").all_inner_texts()


@pytest.mark.stress
def test_a_table_is_sorted_and_chosen_from_by_keyboard_and_a_measurement_started_and_cancelled(lab: Lab) -> None:
    notebook = lab.open_shared(CELLS)
    panel = notebook.panel(".dp-profile-panel")
    before = notebook.figure(panel)
    assert before.title == "vgg16: an iteration on one GPU"
    by_time = column(panel, 1)
    assert len(by_time) == notebook.value("len(shipped.profile.graph.layers)")

    head = panel.locator("th button", has_text="layer")
    notebook.press(head, "Enter")
    assert panel.locator("th", has_text="layer").get_attribute("aria-sort") == "ascending"
    assert column(panel, 1) != by_time
    notebook.page.keyboard.press("Enter")
    assert panel.locator("th", has_text="layer").get_attribute("aria-sort") == "descending"
    notebook.press(panel.locator("th button", has_text="sum"), "Enter")
    assert column(panel, 1) == by_time
    notebook.until(lambda: notebook.value("(shipped.table.sort_by, shipped.table.descending)") == (5, True))

    notebook.press(panel.locator("tbody button").first, "Enter")
    one = notebook.changed(panel, before)
    assert one.title == f"{by_time[0]} of vgg16"
    notebook.page.keyboard.press("ArrowDown")
    notebook.page.keyboard.press("Enter")
    two = notebook.changed(panel, one)
    assert two.title == "2 layers of vgg16"
    assert notebook.value("shipped.selected") == tuple(by_time[:2])
    assert panel.locator("tbody button[aria-pressed='true']").all_inner_texts() == by_time[:2]
    # The title changes before the traces.
    notebook.until(lambda: sum(x["name"].endswith(", measured") for x in notebook.figure(panel).traces) == 2)

    words = panel.get_by_label("filter rows")
    words.fill("CLASS .3")
    notebook.until(lambda: column(panel, 1) == ["classifier.3"])
    assert "1 of 22 rows" in panel.inner_text()
    words.fill("")
    notebook.until(lambda: column(panel, 1) == by_time)
    assert panel.locator("tbody button[aria-pressed='true']").all_inner_texts() == by_time[:2]

    live = notebook.page.locator(".dp-profile-panel").nth(1)
    assert "No times yet" in live.inner_text()
    notebook.press(notebook.button(live, "Measure"), "Enter")
    cancel = notebook.button(live, "Stop")
    notebook.until(cancel.is_enabled)
    notebook.until(lambda: notebook.value("live.row.run.progress") > 0)
    notebook.press(cancel, "Enter")
    notebook.until(lambda: "cancelled at" in live.inner_text())
    resume = notebook.button(live, "Resume")
    resume.wait_for()
    assert "Resumes from" in live.inner_text()
    assert notebook.problem(live) == ""

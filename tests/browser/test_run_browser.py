"""Records of a folder in a real page: one shown, another one chosen, two compared, all by keyboard."""

import pytest

from tests.browser.lab import Lab

RECORDS = """
import deeppool as dp
from dataclasses import replace
from tests.figures.records import run_of, two_layer_plan
dp.save(two_layer_plan(), "plan.json")
slower = replace(run_of().foreground, slowdown=0.4)
for name, run in (("a.json", run_of()), ("b.json", replace(run_of(), date="2026-11-22T05:00:00", foreground=slower))):
    dp.save(run, name)
import pathlib
pathlib.Path("theirs.json").write_text("{}")
import os
for when, name in enumerate(["theirs.json", "plan.json", "a.json", "b.json"]):
    os.utime(name, (10**9 + when, 10**9 + when))
"""
BROWSER = "browser = dp.widgets.RunBrowser('.')\nbrowser"


@pytest.mark.stress
def test_a_record_is_chosen_and_compared_by_keyboard(lab: Lab) -> None:
    notebook = lab.open_shared([RECORDS, BROWSER])
    panel = notebook.panel(".dp-run-browser")
    assert "3 records, and 1 other JSON file" in panel.inner_text()
    files = panel.locator("select[size]").first
    newest = notebook.figure(panel)
    assert notebook.value("browser.selected.date") == "2026-11-22T05:00:00"

    # A plan is two rows further down.
    notebook.press(files, "ArrowDown", "ArrowDown")
    plan = notebook.changed(panel, newest)
    assert notebook.value("type(browser.selected).__name__") == "Plan"

    # And what is no record says so.
    notebook.press(files, "ArrowDown")
    notebook.until(lambda: "is it a file of deeppool?" in notebook.problem(panel))
    notebook.press(files, "ArrowUp", "ArrowUp")
    older = notebook.changed(panel, plan)

    other = panel.locator("select:not([size])").first
    notebook.press(other, "ArrowDown")
    notebook.until(lambda: notebook.value("browser.compared is not None"))
    both = notebook.changed(panel, older)
    assert any("before: " in letters for letters in both.letters)
    assert "background throughput" in panel.inner_text()
    assert notebook.problem(panel) == ""

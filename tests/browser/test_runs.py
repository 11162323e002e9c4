"""A run and its reader: a closed tab, a kernel that was started anew, another notebook."""

import pytest

from tests.browser.lab import Lab

TRAINING = (
    "import deeppool as dp\nfrom tests.runs.test_train import make_job, make_plan, slow_dataset",
    "run = dp.start(dp.train, make_plan(2), make_job(dataset=slow_dataset), steps=100_000)\nrun",
)
RUNS = ("import deeppool as dp", "runs = dp.widgets.RunsPanel(0.1)\nruns")


def test_a_run_is_seen_again_after_its_tab_was_closed_and_ends_when_it_is_cancelled(lab: Lab) -> None:
    notebook = lab.open_shared(TRAINING)
    panel = notebook.panel(".dp-run-panel")
    notebook.until(lambda: "loss" in panel.inner_text(), seconds=120)
    notebook.press(notebook.button(panel, "Devices"), "Enter")
    notebook.until(lambda: len(notebook.figure(panel).trace("available")["y"]) >= 3)
    drawn = len(notebook.figure(panel).trace("available")["y"])
    # What a page shows of widgets after it was opened again is what the file said.
    notebook.save()
    notebook.hide()
    assert len(lab.server.processes()) >= 4, "the kernel, two ranks and the process that they were forked from"
    notebook.show()
    panel = notebook.panel(".dp-run-panel")
    said = panel.inner_text()
    notebook.until(lambda: panel.inner_text() != said)
    assert len(notebook.figure(panel).trace("available")["y"]) >= drawn
    cancel = notebook.button(panel, "Stop")
    notebook.press(cancel, "Enter")
    notebook.until(cancel.is_disabled)
    assert "cancelled after" in panel.inner_text()
    assert notebook.value("run.state") == "cancelled"
    assert notebook.value("dp.running()") == ()


@pytest.mark.stress
def test_a_run_of_a_notebook_that_nobody_saved_is_found_in_another_one_and_stopped_there(lab: Lab) -> None:
    other = lab.open(RUNS)
    panel = other.panel(".dp-runs-panel")
    assert "You have no runs in progress" in panel.inner_text()
    notebook = lab.open(TRAINING)
    notebook.hide()
    other.page.bring_to_front()
    other.until(lambda: "train" in panel.inner_text() and "test.ipynb" in panel.inner_text(), seconds=120)
    running = len(lab.server.processes())
    other.press(other.button(panel, "Stop"), "Enter")
    other.until(lambda: "You have no runs in progress" in panel.inner_text())
    assert len(lab.server.processes()) < running
    notebook.show()
    assert notebook.value("run.state") == "cancelled"

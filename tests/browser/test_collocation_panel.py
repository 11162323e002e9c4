"""A collocated run in a real page: launched, its bound changed, and stopped, all by keyboard."""

import pytest

from tests.browser.lab import Lab

PLAN = """
import deeppool as dp
example = "examples.two_branch:two_branch"
profile = dp.profile(example, device="cpu", batch_sizes=[4])
plan = dp.plan(profile, dp.find_cluster("loopback", 1), global_batch=4)
"""
# An equal of the foreground: at the lowest priority a busy machine gives the background nothing for minutes.
PANEL = """
panel = dp.widgets.CollocationPanel(plan, background=example, policy="naive", max_slowdown=0.2, seconds=600)
panel
"""
PROCESSES = (
    "[word for child in __import__('psutil').Process().children(True) for word in child.cmdline() "
    "if 'execution.worker' in word or 'deeppool.collocation' in word]"
)


def test_a_run_is_launched_its_bound_changed_and_stopped_by_keyboard(lab: Lab) -> None:
    notebook = lab.open_shared([PLAN, PANEL])
    panel = notebook.panel(".dp-collocation-panel")
    assert "Nothing has run yet" in panel.inner_text()
    launch, stop = notebook.button(panel, "Launch"), notebook.button(panel, "Stop")
    notebook.press(launch, "Enter")
    notebook.until(lambda: launch.is_disabled() and stop.is_enabled())

    # Iterations are drawn as they are measured.
    notebook.until(panel.locator(".js-plotly-plot").first.is_visible)
    notebook.until(lambda: len(notebook.figure(panel).trace("collocated")["y"]) > 2, seconds=200)
    before = notebook.figure(panel)
    bounds = {value for value in before.trace("bound")["y"] if value is not None}
    assert len(bounds) == 1

    # Down by ten steps of half a percent.
    notebook.press(notebook.slider(panel, "Bound (% slower)"), *["ArrowLeft"] * 10)
    notebook.until(lambda: notebook.value("panel.run.bound") == 0.15)

    def lower() -> bool:
        drawn = [value for value in notebook.figure(panel).trace("bound")["y"] if value is not None]
        # All of the line moves with the mean alone; its step is what the bound has changed by.
        return bool(drawn) and min(drawn) == pytest.approx(max(drawn) * 1.15 / 1.2)

    notebook.until(lower, seconds=200)
    notebook.changed(panel, before)
    assert notebook.value("panel.run.state") == "running"
    assert len(notebook.value(PROCESSES)) >= 2

    notebook.press(stop, "Enter")
    notebook.until(launch.is_enabled)
    assert notebook.value("panel.run.state") == "cancelled"
    assert notebook.value(PROCESSES) == []
    assert notebook.problem(panel) == ""

"""The list of runs in the sidebar of ``deeppool lab``: without a kernel of its own, and with the server's token."""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.browser.lab_command import COPY, LabCommand
from tests.browser.notebook import Notebook
from tests.browser.test_lab_command import refused

RUN = """
import queue
from deeppool.base import cancellation, run_registry

@run_registry.registered
def train(model, *, on_progress=None):
    on_progress("update 1 of 4 <b>", 0.25)
    cancellation.wait(queue.SimpleQueue(), 600)

run = dp.start(train, "vgg16")
"""


def test_a_run_is_seen_and_stopped_in_the_sidebar(lab_command: LabCommand, users_notebook: Notebook) -> None:
    server = lab_command
    assert refused(f"{server.url}/deeppool/runs")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(urllib.request.Request(f"{server.url}/deeppool/runs/1-1/stop", method="POST"))
    notebook = users_notebook
    notebook.value(f"exec({RUN!r}, globals())")
    page = notebook.page
    page.locator(".lm-TabBar-tab[data-id='deeppool-runs']").click()
    panel = page.locator(".dp-runs-sidebar")
    notebook.until(lambda: "update 1 of 4 <b> (25 %" in panel.inner_text())
    assert "train vgg16" in panel.inner_text()
    assert panel.locator("progress").evaluate("bar => bar.value") == 0.25
    if folder := os.environ.get("DEEPPOOL_PICTURES"):
        page.screenshot(path=Path(folder) / "runs-sidebar.png")
    (told,) = server.ask("GET", "/deeppool/runs")["runs"]
    assert told["where"] == COPY and json.dumps(told)
    notebook.press(panel.get_by_role("button", name="Stop"), "Enter")
    notebook.until(lambda: "You have no runs in progress" in panel.inner_text())
    notebook.until(lambda: notebook.value("run.state") == "cancelled")
    assert panel.get_by_role("alert").inner_text() == ""

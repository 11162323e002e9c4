"""The list of runs without a browser: it follows what is under way, and each button ends its own run."""

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.base import cancellation, run_registry
from deeppool.errors import RunCancelledError
from deeppool.widgets import RunsPanel
from deeppool.widgets.runs_panel import describe
from tests.waiting import wait_until

PATIENCE = 300
NEVER = 10_000.0
"""Seconds: the panel looks when it is told to."""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(run_registry, "INTERVAL", 0.01)


@pytest.fixture
def panel() -> Iterator[RunsPanel]:
    made = RunsPanel(NEVER)
    yield made
    made.close()


@run_registry.registered
def hold(name: str, *, on_progress=None) -> None:
    on_progress("<holding>", 0.25)
    cancellation.wait(queue.SimpleQueue(), PATIENCE)


def texts(panel: RunsPanel) -> list[str]:
    return [line.children[2].value for line in panel.list.children]


def test_without_a_run_it_says_how_to_start_one(panel: RunsPanel) -> None:
    assert "dp.start(dp.train, plan, job, steps=1000)" in panel.status.value
    assert panel.list.children == ()


def test_each_run_has_a_line_and_a_button_that_ends_it(panel: RunsPanel) -> None:
    runs = []
    for name in ("first", "second"):
        runs.append(dp.start(hold, name))
        wait_until(lambda: [run.progress for run in dp.running()] == [0.25] * len(runs))
    panel.refresh()
    assert [text.split(",")[0] for text in texts(panel)] == [
        "<b>hold first: &lt;holding&gt;</b>",
        "<b>hold second: &lt;holding&gt;</b>",
    ]
    bar, stop, _ = panel.list.children[1].children
    assert bar.value == 0.25
    assert stop.tooltip == "end hold second"
    kept = panel.list.children[0]
    stop.click()
    assert (stop.disabled, stop.description) == (True, "Stopping")
    with pytest.raises(RunCancelledError):
        runs[1].result(PATIENCE)
    panel.refresh()
    assert panel.list.children == (kept,)
    assert [run.what for run in panel.runs] == ["hold first"]
    runs[0].cancel()
    panel.refresh()
    assert "You have no runs in progress" in panel.status.value
    assert panel.list.children == ()


def test_it_looks_by_itself_until_it_is_closed() -> None:
    panel = RunsPanel(0.01)
    run = dp.start(hold, "alone")
    wait_until(lambda: len(panel.list.children) == 1)
    run.cancel()
    wait_until(lambda: panel.list.children == ())
    panel.close()
    panel._thread.join(PATIENCE)
    assert not panel._thread.is_alive()


def test_a_folder_that_others_may_enter_is_reported_of(tmp_path: Path, panel: RunsPanel) -> None:
    (tmp_path / "deeppool").chmod(0o755)
    panel.refresh()
    assert "chmod 700" in panel.status.value
    (tmp_path / "deeppool").chmod(0o700)
    panel.refresh()
    assert "You have no runs in progress" in panel.status.value
    assert panel.problem == ""


def test_a_line_says_what_how_far_and_where() -> None:
    with pytest.raises(ZeroDivisionError):
        seen = []

        @run_registry.registered
        def divide(*, on_progress=None) -> None:
            seen.extend(dp.running())
            raise ZeroDivisionError

        divide()
    (run,) = seen
    what, where = describe(run).split("<br>")
    assert what.startswith("<b>divide: starting</b>, 0 %, ")
    assert where.endswith(f", in {Path.cwd()} (process {run.pid})")

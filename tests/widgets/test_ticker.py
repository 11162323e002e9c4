"""A run that reports nothing is drawn anew until it ends."""

import threading

import pytest

from deeppool.runs.handle import start
from deeppool.widgets import ticker
from deeppool.widgets.ticker import follow
from tests.waiting import TIMEOUT


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundredths of a second stand for seconds."""
    monkeypatch.setattr(ticker, "SECOND", 0.01)


def test_a_run_is_drawn_while_it_reports_nothing_and_no_longer_once_it_has_ended() -> None:
    go_on, thrice, drawn = threading.Event(), threading.Event(), []

    def silent(on_progress=None) -> str:
        assert go_on.wait(TIMEOUT)
        return "done"

    run = start(silent)

    def draw() -> None:
        drawn.append((run.state, threading.current_thread().name))
        if len(drawn) >= 3:
            thrice.set()

    follow(run, draw)
    assert thrice.wait(TIMEOUT)
    assert {state for state, _ in drawn} == {"running"}
    go_on.set()
    assert run.result(TIMEOUT) == "done"
    for thread in threading.enumerate():
        if thread.name in ("deeppool tick", "deeppool silent"):
            thread.join(TIMEOUT)
    # The end is drawn by the run's own thread.
    assert [name for state, name in drawn if state == "done"] == ["deeppool silent"]


def test_a_figure_that_cannot_be_drawn_ends_no_run_and_is_not_tried_again() -> None:
    go_on, failed, tried = threading.Event(), threading.Event(), []

    def silent(on_progress=None) -> str:
        assert go_on.wait(TIMEOUT)
        return "done"

    def draw() -> None:
        tried.append(threading.current_thread().name)
        failed.set()
        raise ValueError("no such trace")

    run = start(silent)
    follow(run, draw)
    assert failed.wait(TIMEOUT)
    for thread in threading.enumerate():
        if thread.name == "deeppool tick":
            thread.join(TIMEOUT)
    go_on.set()
    assert run.result(TIMEOUT) == "done"
    assert tried.count("deeppool tick") == 1

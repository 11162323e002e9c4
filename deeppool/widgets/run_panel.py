"""A live run in a notebook: how far it is, what it does, and a button that ends it."""

import threading
import time
from typing import TYPE_CHECKING, Any

import ipywidgets

if TYPE_CHECKING:
    from deeppool.live_run import LiveRun

INTERVAL = 0.25
"""Seconds between two changes on the screen; each is a message to the browser."""
COLOURS = {"running": "info", "done": "success", "failed": "danger", "cancelled": "warning"}


def run_panel(run: "LiveRun[Any]") -> ipywidgets.Widget:
    """A panel that follows the run until its end.

    It follows while a cell is busy, too; the button is heard when the kernel is free.
    """
    bar = ipywidgets.FloatProgress(max=1.0)
    said = ipywidgets.Label()
    stop = ipywidgets.Button(description="Cancel", layout=ipywidgets.Layout(width="6em"))
    stop.on_click(lambda _: run.request_cancel())
    drawing = threading.Lock()
    drawn = -INTERVAL

    def draw() -> None:
        nonlocal drawn
        with drawing:
            ended = run.state != "running"
            if not ended and time.monotonic() - drawn < INTERVAL:
                return
            drawn = time.monotonic()
            # A trait's assignment reaches the browser from any thread.
            bar.value, bar.bar_style, said.value, stop.disabled = run.progress, COLOURS[run.state], repr(run), ended

    draw()
    run.watch(draw)
    panel = ipywidgets.HBox([bar, stop, said])
    panel.add_class("dp-run-panel")
    return panel

"""A live run in a notebook: how far it is, what it does, a button that ends it, and one that shows the devices."""

import threading
import time
from typing import TYPE_CHECKING, Any

import ipywidgets

from deeppool.telemetry import Sampler
from deeppool.widgets.telemetry_panel import telemetry_panel

if TYPE_CHECKING:
    from deeppool.live_run import LiveRun

INTERVAL = 0.25
"""Seconds between two changes on the screen; each is a message to the browser."""
COLOURS = {"running": "info", "done": "success", "failed": "danger", "cancelled": "warning"}


def run_panel(run: "LiveRun[Any]") -> ipywidgets.Widget:
    """A panel that follows the run until its end.

    It follows while a cell is busy, too; the buttons are heard when the kernel is free.
    """
    bar = ipywidgets.FloatProgress(max=1.0)
    said = ipywidgets.Label()
    stop = ipywidgets.Button(description="Cancel", layout=ipywidgets.Layout(width="6em"))
    stop.on_click(lambda _: run.request_cancel())
    devices = ipywidgets.Button(description="Devices", layout=ipywidgets.Layout(width="6em"))
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

    def show_devices(_: object) -> None:
        devices.disabled = True
        sampler = Sampler()
        panel.children = (row, telemetry_panel(sampler))
        run.watch(lambda: None if run.state == "running" else sampler.close())

    draw()
    run.watch(draw)
    devices.on_click(show_devices)
    row = ipywidgets.HBox([bar, stop, devices, said])
    panel = ipywidgets.VBox([row])
    panel.add_class("dp-run-panel")
    return panel

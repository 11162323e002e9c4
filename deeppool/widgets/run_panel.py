"""Progress of a live run in a notebook, with buttons to cancel it and to show device utilisation."""

import threading
import time
from typing import TYPE_CHECKING, Any

import ipywidgets

from deeppool.telemetry import Sampler
from deeppool.widgets.panel import Panel
from deeppool.widgets.telemetry_panel import TelemetryPanel
from deeppool.widgets.ticker import follow

if TYPE_CHECKING:
    from deeppool.runs.handle import RunHandle

INTERVAL = 0.25
"""Minimum seconds between two updates; each is a message to the browser."""
COLOURS = {"running": "info", "done": "success", "failed": "danger", "cancelled": "warning"}


class RunPanel(Panel):
    """Shows the progress of a run until it ends.

    It also updates while a cell is running; button presses are handled when the kernel is idle.
    """

    def __init__(self, run: "RunHandle[Any]") -> None:
        """Starts following the run."""
        self.run = run
        self.bar = ipywidgets.FloatProgress(max=1.0)
        self.status = ipywidgets.Label().add_class("dp-status")
        self.stop = ipywidgets.Button(description="Stop", layout=ipywidgets.Layout(width="6em"))
        self.devices = ipywidgets.Button(description="Devices", layout=ipywidgets.Layout(width="6em"))
        self._row = ipywidgets.HBox([self.bar, self.stop, self.devices, self.status], layout={"flex_flow": "row wrap"})
        super().__init__([self._row])
        self._drawing = threading.Lock()
        self._drawn = -INTERVAL
        self._draw()
        follow(run, self._draw)
        self.on_click(self.stop, run.request_cancel)
        self.on_click(self.devices, self._show_devices)

    def _draw(self) -> None:
        with self._drawing:
            ended = self.run.state != "running"
            if not ended and time.monotonic() - self._drawn < INTERVAL:
                return
            self._drawn = time.monotonic()
            # Assigning a trait updates the browser from any thread.
            self.bar.value, self.bar.bar_style = self.run.progress, COLOURS[self.run.state]
            self.status.value, self.stop.disabled = repr(self.run), ended
            # They are sampled during the run: afterwards there is nothing to show.
            self.devices.disabled = ended or self.devices.disabled

    def _show_devices(self) -> None:
        self.devices.disabled = True
        sampler = Sampler()
        self.show(self._row, TelemetryPanel(sampler))
        self.run.watch(lambda: None if self.run.state == "running" else sampler.close())

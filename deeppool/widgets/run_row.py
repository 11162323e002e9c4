"""A row of controls that starts a call, shows its progress, and cancels it."""

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import ipywidgets

from deeppool.runs.handle import RunHandle
from deeppool.widgets.panel import Panel
from deeppool.widgets.run_panel import COLOURS, INTERVAL
from deeppool.widgets.ticker import follow

Result = TypeVar("Result")


class RunRow(ipywidgets.HBox, Generic[Result]):  # type: ignore[misc]  # ipywidgets has no types
    """Part of a panel: start and stop buttons, a progress bar and a status line for one run at a time.

    The callbacks are called in the run's thread; errors of a run appear in the panel.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], RunHandle[Result]],
        on_result: Callable[[Result], object],
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        """Shows the controls; no run is started.

        Args:
            name: label of the start button.
            begin: starts the call.
            on_result: called with the result.
            on_end: called when a run has failed or was cancelled.
        """
        self._begin, self._on_result, self._on_end = begin, on_result, on_end
        self.run: RunHandle[Result] | None = None
        """The most recent run; it may have ended."""
        self.start = ipywidgets.Button(description=name, button_style="primary")
        self.cancel = ipywidgets.Button(description="Stop", disabled=True)
        self.bar = ipywidgets.FloatProgress(max=1.0, layout={"width": "12em"})
        self.status = ipywidgets.Label().add_class("dp-status")
        self.after_cancel = ""
        """Sentence displayed after a cancellation: what was saved."""
        self._drawing = threading.Lock()
        self._drawn = -INTERVAL
        self._finished_run: RunHandle[Result] | None = None
        super().__init__([self.start, self.cancel, self.bar, self.status], layout={"flex_flow": "row wrap"})
        self.add_class("dp-run-row")

    def connect(self, panel: Panel) -> None:
        """Makes the buttons start and cancel runs, whose errors appear in the panel."""
        self._panel = panel
        panel.on_click(self.start, self.launch)
        panel.on_click(self.cancel, self.request_cancel)

    def launch(self) -> RunHandle[Result]:
        """Starts the call, or returns the run in progress."""
        if self.run is not None and self.run.state == "running":
            return self.run
        run = self.run = self._begin()
        self._drawn = -INTERVAL
        follow(run, lambda: self._follow(run))
        self._draw(run)
        return run

    def request_cancel(self) -> None:
        """Requests cancellation of the run in progress."""
        if self.run is not None:
            self.run.request_cancel()

    def _follow(self, run: RunHandle[Result]) -> None:
        if run.state != "running":
            # A run that ends during watch() notifies twice.
            with self._drawing:
                if self._finished_run is run:
                    return
                self._finished_run = run
        try:
            if run.state == "done":
                # Before the status changes, so that the result is displayed once the row says done.
                self._on_result(run.result(0))
            elif run.state != "running":
                self._on_end()
        except Exception as error:
            # Nobody above would show it, and the row has to say how the run ended.
            self._panel.show_error(error)
        if run.state == "failed" and run.error is not None:
            self._panel.show_error(run.error)
        self._draw(run)

    def _draw(self, run: RunHandle[Any]) -> None:
        with self._drawing:
            ended = run.state != "running"
            if not ended and time.monotonic() - self._drawn < INTERVAL:
                return
            self._drawn = time.monotonic()
            self.bar.value, self.bar.bar_style = run.progress, COLOURS[run.state]
            self.start.disabled, self.cancel.disabled = not ended, ended
            if run.state == "failed":
                self.status.value = f"{run.name}: failed at {100 * run.progress:.0f} % (why: below)"
            elif run.state == "cancelled":
                self.status.value = f"{run.name}: cancelled at {100 * run.progress:.0f} %. {self.after_cancel}"
            else:
                self.status.value = repr(run)


def side_by_side(*controls: ipywidgets.Widget) -> ipywidgets.HBox:
    """Returns a row of controls that wraps on a narrow page."""
    return ipywidgets.HBox(controls, layout={"flex_flow": "row wrap"})

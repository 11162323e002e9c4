"""A row that starts a call, shows how far it is, and cancels it."""

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import ipywidgets

from deeppool.runs.handle import RunHandle
from deeppool.widgets.run_panel import COLOURS, INTERVAL

Result = TypeVar("Result")


class RunRow(ipywidgets.HBox, Generic[Result]):  # type: ignore[misc]  # ipywidgets has no types
    """Start, cancel, a bar and a sentence. One run at a time.

    What a run gives, or why it gave nothing, is told in the run's own thread.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], RunHandle[Result]],
        on_result: Callable[[Result], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        """Shows a button of this name; nothing runs yet.

        Args:
            name: of the button.
            begin: starts the call.
            on_result: what comes of it.
            on_end: of a run that gave nothing: why it failed, or None where it was cancelled.
        """
        self._begin, self._on_result, self._on_end = begin, on_result, on_end
        self.run: RunHandle[Result] | None = None
        """The newest; it may have ended."""
        self.start = ipywidgets.Button(description=name, button_style="primary")
        self.cancel = ipywidgets.Button(description="Cancel", disabled=True)
        self.bar = ipywidgets.FloatProgress(max=1.0, layout={"width": "12em"})
        self.said = ipywidgets.Label()
        self.after_cancel = ""
        """A sentence for whoever cancelled: what is kept."""
        self._drawing = threading.Lock()
        self._drawn = -INTERVAL
        self._told: RunHandle[Result] | None = None
        super().__init__([self.start, self.cancel, self.bar, self.said])
        self.add_class("dp-run-row")

    @property
    def running(self) -> bool:
        """Whether a run is under way."""
        return self.run is not None and self.run.state == "running"

    def launch(self) -> RunHandle[Result]:
        """Starts the call, or returns the one under way."""
        if self.run is not None and self.run.state == "running":
            return self.run
        run = self.run = self._begin()
        self._drawn = -INTERVAL
        run.watch(lambda: self._follow(run))
        self._draw(run)
        return run

    def request_cancel(self) -> None:
        """Asks the run under way to end."""
        if self.run is not None:
            self.run.request_cancel()

    def _follow(self, run: RunHandle[Result]) -> None:
        if run.state != "running":
            # A run that ends while it is being watched says so twice.
            with self._drawing:
                if self._told is run:
                    return
                self._told = run
        if run.state == "done":
            # Before the row says so: who sees it done finds the result shown.
            self._on_result(run.result(0))
        elif run.state != "running":
            self._on_end(run.error if run.state == "failed" else None)
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
                self.said.value = f"{run.name}: failed at {100 * run.progress:.0f} % (why: below)"
            elif run.state == "cancelled":
                self.said.value = f"{run.name}: cancelled at {100 * run.progress:.0f} %. {self.after_cancel}"
            else:
                self.said.value = repr(run)


def side_by_side(*controls: ipywidgets.Widget) -> ipywidgets.HBox:
    """A row of controls; below one another where the page is narrow."""
    return ipywidgets.HBox(controls, layout={"flex_flow": "row wrap"})

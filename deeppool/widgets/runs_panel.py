"""All runs of the user on this machine, each with a stop button."""

import html
import threading

import ipywidgets

from deeppool.base import run_registry
from deeppool.base.run_registry import RegisteredRun
from deeppool.errors import RunError
from deeppool.units import format_seconds
from deeppool.widgets.panel import Panel, alert

INTERVAL = 1.0
"""Seconds between two refreshes."""
EMPTY = (
    "You have no runs in progress on this machine. "
    "Start one with <code>dp.start(dp.train, plan, job, steps=1000)</code> or <code>deeppool train</code>."
)


class RunsPanel(Panel):
    """Lists the runs of all notebooks, scripts and commands until it is closed.

    Runs that outlived their browser tab are listed, too. The list also refreshes while a cell is running; button
    presses are handled when the kernel is idle.
    """

    def __init__(self, interval: float = INTERVAL) -> None:
        """Starts listing runs.

        Args:
            interval: seconds between two refreshes.
        """
        self.status = ipywidgets.HTML()
        self.list = ipywidgets.VBox()
        self._rows: dict[str, _Row] = {}
        self._drawing, self._closing = threading.Lock(), threading.Event()
        super().__init__([self.status, self.list])
        self.refresh()
        self._thread = threading.Thread(target=self._follow, args=(interval,), name="deeppool runs", daemon=True)
        self._thread.start()

    @property
    def runs(self) -> tuple[RegisteredRun, ...]:
        """The listed runs."""
        return tuple(row.run for row in self._rows.values())

    def refresh(self) -> None:
        """Refreshes the list now."""
        with self._drawing:
            try:
                found = run_registry.running()
            except RunError as error:
                # Here, where the next refresh that succeeds replaces it.
                self.status.value = alert(error)
                return
            for run in found:
                if run.name in self._rows:
                    self._rows[run.name].show(run)
            rows = {run.name: self._rows.get(run.name) or _Row(run, self) for run in found}
            self.status.value = EMPTY if not rows else "In progress on this machine:"
            if rows.keys() != self._rows.keys():
                self.list.children = tuple(row.line for row in rows.values())
            self._rows = rows

    def close(self) -> None:
        """Removes the panel from the page; runs continue."""
        self._closing.set()
        super().close()

    def _follow(self, interval: float) -> None:
        while not self._closing.wait(interval):
            self.refresh()


class _Row:
    """Controls of one listed run."""

    def __init__(self, run: RegisteredRun, panel: Panel) -> None:
        self._bar = ipywidgets.FloatProgress(max=1.0, bar_style="info", layout=ipywidgets.Layout(width="8em"))
        self._status = ipywidgets.HTML(layout=ipywidgets.Layout(flex="1 1 auto"))
        self._stop = ipywidgets.Button(
            description="Stop", tooltip=f"end {run.what}", layout=ipywidgets.Layout(width="7em")
        )
        panel.on_click(self._stop, self._end)
        self.line = ipywidgets.HBox([self._bar, self._stop, self._status])
        self.show(run)

    def show(self, run: RegisteredRun) -> None:
        self.run = run
        self._bar.value = run.progress
        self._status.value = describe(run)

    def _end(self) -> None:
        self.run.stop()
        self._stop.disabled, self._stop.description = True, "Stopping"


def describe(run: RegisteredRun) -> str:
    """Returns HTML with a run's activity, progress and origin."""
    what, where = html.escape(f"{run.what}: {run.doing}"), html.escape(f"{run.where}, in {run.folder}")
    return f"<b>{what}</b>, {100 * run.progress:.0f} %, {format_seconds(run.age)}<br>{where} (process {run.pid})"

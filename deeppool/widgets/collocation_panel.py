"""Launches a run with a background job from a notebook, shows it live, and saves its record."""

import html
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ipywidgets
import plotly.graph_objects as go
import traitlets

from deeppool import figures
from deeppool.advice.card import text_with_card
from deeppool.base.arguments import typed
from deeppool.base.live_sample import BackgroundSample
from deeppool.base.number_checks import positive_number
from deeppool.base.sharing import Policy, find_sharing
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.errors import RunError
from deeppool.figures.formatting import preformatted
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.planning.report.as_code import launch_command, launch_python
from deeppool.records.files import save_run
from deeppool.records.run_record import RunRecord
from deeppool.runs.handle import RunHandle, start
from deeppool.runs.launch import launch
from deeppool.telemetry import Sampler
from deeppool.widgets.code_box import CodeBox
from deeppool.widgets.collocation_settings import CollocationSettings
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.panel import Panel
from deeppool.widgets.run_panel import COLOURS, INTERVAL
from deeppool.widgets.telemetry_panel import TelemetryPanel
from deeppool.widgets.ticker import follow

IDLE_RATIO = 19.0
"""Pause after a redraw, in multiples of its duration: drawing takes at most 1/20 of the measured machine's time."""
FOLDER = "runs"
EMPTY = (
    "Nothing has run yet. Choose a background job and press <b>Launch</b>: the plan's ranks, each with a background "
    "job, start on this machine; iterations are drawn here as soon as they are measured."
)


class CollocationPanel(Panel):
    """Runs a plan with a background job, as :func:`deeppool.launch` does, and shows its progress live.

    The record of the last completed run is :attr:`record`; it is also saved in the folder.
    """

    plan: Any = traitlets.Any()
    """Plan of the next run, to link to that of an explorer."""
    record: Any = traitlets.Any(None)
    """Record of the last completed run, to observe or to link; None: there is none."""

    @typed
    def __init__(
        self,
        plan: Plan,
        *,
        background: str | Job | BackgroundJob = "resnet18",
        policy: Policy = "priority",
        max_slowdown: float | None = None,
        seconds: float = 60.0,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        """Lays out the controls; the run starts when **Launch** is pressed or :meth:`begin` is called.

        Args:
            plan: plan of the foreground.
            background: a model's name, which can be changed in the panel, or a job of your own.
            policy: a name in :data:`deeppool.base.sharing.POLICIES`.
            max_slowdown: bound on the foreground's slowdown: 0.03 is 3 %. None: no bound.
            seconds: duration of the measurement.
            folder: folder for the records, created when needed; by default ``runs`` in the current folder.

        Raises:
            InvalidValueError: an argument of another type, or out of its bounds.
        """
        find_sharing(policy, max_slowdown)
        positive_number("seconds", seconds, "the duration of the measurement")
        self.plan = self._ran = plan
        self.run: RunHandle[RunRecord] | None = None
        """The current run, or the last one."""
        self.path: Path | None = None
        """File of :attr:`record`."""
        self._folder = Path(FOLDER if folder is None else folder)
        self.settings = CollocationSettings(background, policy, max_slowdown, seconds)
        self.launch = ipywidgets.Button(description="Launch", button_style="primary")
        self.stop = ipywidgets.Button(description="Stop", disabled=True)
        self.bar = ipywidgets.FloatProgress(max=1.0)
        self.status = ipywidgets.HTML(EMPTY)
        self.jobs = ipywidgets.HTML()
        self.figure = LiveFigure(figures.live([]))
        self._live = ipywidgets.VBox([self.figure])
        self._live.layout.display = "none"
        self._finished_run: RunHandle[RunRecord] | None = None
        """The run whose end has been handled: a run may notify of its end more than once."""
        self._drawing, self._next_draw = threading.RLock(), 0.0
        self.code = CodeBox(
            lambda: launch_python(self.settings.arguments()), lambda: launch_command(self.settings.arguments())
        )
        buttons = ipywidgets.HBox([self.launch, self.stop, self.bar])
        super().__init__([self.settings, buttons, self.status, self.jobs, self._live, self.code])
        self.code.connect(self)
        self.on_click(self.launch, self.begin)
        self.on_click(self.stop, self.end)
        self.settings.on_bound(self.guarded(self._change_bound))
        self.on_theme(self._draw)

    def begin(self) -> RunHandle[RunRecord]:
        """Launches a run with the settings of the controls, as the button does.

        Raises:
            RunError: a run of this panel is still running.
        """
        if self.run is not None and self.run.state == "running":
            raise RunError("a run of this panel is still running (stop it first)")
        self._ran = self.plan
        run = self.run = start(launch, self._ran, **self.settings.arguments())
        self.launch.disabled, self.stop.disabled = True, False
        self.settings.lock(run.bound_refusal)
        sampler = Sampler()
        devices = TelemetryPanel(sampler)
        # The run has its own Stop button; the sampler ends with the run.
        devices.stop.layout.display = "none"
        self._live.children, self._live.layout.display = (self.figure, devices), None
        follow(run, lambda: self._follow(run))
        run.watch(lambda: None if run.state == "running" else sampler.close())
        return run

    def end(self) -> None:
        """Ends the run and all of its processes, as the button does."""
        if self.run is not None:
            self.run.request_cancel()

    def static(self) -> go.Figure:
        """Returns the figure of the last run; before the first run, the plan's timeline."""
        if self.record is not None:
            return figures.collocation(self.record, dark=self.dark)
        return figures.timeline(self.plan, dark=self.dark)

    def _change_bound(self, bound: float) -> None:
        if self.run is not None and self.run.state == "running":
            self.run.change_bound(bound)

    def _follow(self, run: RunHandle[RunRecord]) -> None:
        """Redraws on a notification, in the run's thread."""
        if run is not self.run:
            return
        with self._drawing:
            ended = run.state != "running"
            if run is self._finished_run or (not ended and time.monotonic() < self._next_draw):
                return
            before = time.thread_time()
            try:
                self.bar.value, self.bar.bar_style = run.progress, COLOURS[run.state]
                self.status.value = html.escape(repr(run))
                self._draw()
                if ended:
                    self._finished_run = run
                    self._finish(run)
                else:
                    self.settings.lock(run.bound_refusal)
            # Any error is displayed, and the run continues.
            except Exception as error:
                self.show_error(error)
            if ended:
                self.settings.unlock()
                self.launch.disabled, self.stop.disabled = False, True
            self._next_draw = time.monotonic() + max(INTERVAL, IDLE_RATIO * (time.thread_time() - before))

    def _draw(self) -> None:
        with self._drawing:
            samples = () if self.run is None else self.run.samples
            ended = self.run is not None and self.run.state != "running"
            self.figure.draw(figures.live(samples, ended=ended, dark=self.dark))
            self.jobs.value = describe_jobs(samples[-1].background, ended) if samples else ""

    def _finish(self, run: RunHandle[RunRecord]) -> None:
        """Saves the record of a completed run, or displays why there is none."""
        if run.state == "failed" and run.error is not None:
            self.show_error(run.error)
        if run.state != "done":
            return
        self.record = run.result()
        self.path = save_run(self.record, self._folder)
        self.status.value = (
            f"{html.escape(repr(run))}. The record is <code>{html.escape(str(self.path))}</code> and "
            f"<code>panel.record</code>:{preformatted(text_with_card(self.record, self._ran))}"
        )


def describe_jobs(jobs: Iterable[BackgroundSample], ended: bool) -> str:
    """Returns HTML with a line for each background job, and the reason if it has ended.

    Args:
        jobs: what they reported last.
        ended: whether the run has ended: then only those are listed that ended before it.
    """
    return "<br>".join(
        f'<span role="alert" style="color: var(--jp-error-color1, #b00)">background of rank {job.rank} has ended after '
        f"{job.steps} steps: {html.escape(job.reason)}{'; the foreground goes on' * (not ended)}</span>"
        if job.reason is not None
        else f"background of rank {job.rank}: {job.state}, {job.steps} steps, {job.samples} samples"
        for job in jobs
        if job.reason is not None or not ended
    )

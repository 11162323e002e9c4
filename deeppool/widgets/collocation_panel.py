"""A collocated run from a notebook: chosen, launched, followed, its bound changed while it runs, stopped, kept."""

import html
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import ipywidgets
import plotly.graph_objects as go

from deeppool import figures
from deeppool.base.live_sample import BackgroundSample
from deeppool.base.sharing import Policy
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.errors import RunError
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.records.files import save_run
from deeppool.records.run_record import RunRecord
from deeppool.runs.handle import RunHandle, start
from deeppool.runs.launch import launch
from deeppool.telemetry import Sampler
from deeppool.widgets.collocation_settings import CollocationSettings
from deeppool.widgets.live_figure import become
from deeppool.widgets.panel import Panel
from deeppool.widgets.run_panel import COLOURS
from deeppool.widgets.telemetry_panel import TelemetryPanel

INTERVAL = 0.25
"""Seconds between two drawings at least; each is a message to the page."""
SPARED = 19.0
"""Times what a drawing took before the next one: it runs on the machine that is measured, a twentieth of the time."""
FOLDER = "runs"
EMPTY = (
    "Nothing has run yet. Choose a background job and press <b>Launch</b>: the plan's ranks, and a background job "
    "beside each, start on this machine; iterations are drawn here as soon as they are measured."
)


class CollocationPanel(Panel):
    """Runs a plan beside a background job as :func:`deeppool.launch` does, and shows it while it goes on.

    The record of the last run that came to its end is :attr:`record`, and a file in the folder.
    """

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
        """Starts nothing yet.

        Args:
            plan: that the foreground trains by.
            background: a model's name, which may be changed in the panel, or a job of your own.
            policy: a name in :data:`deeppool.base.sharing.POLICIES`.
            max_slowdown: bound on the foreground's slowdown: 0.03 is 3 %. None: none is held.
            seconds: to measure.
            folder: for the records; ``runs`` in the current folder unless given, made when there is one to keep.
        """
        self.plan = plan
        self.run: RunHandle[RunRecord] | None = None
        """The present one, or the last."""
        self.record: RunRecord | None = None
        """Of the last run that came to its end."""
        self.path: Path | None = None
        """Where that lies."""
        self._folder = Path(FOLDER if folder is None else folder)
        self.settings = CollocationSettings(background, policy, max_slowdown, seconds)
        self.launch = ipywidgets.Button(description="Launch", button_style="primary")
        self.stop = ipywidgets.Button(description="Stop", disabled=True)
        self.bar = ipywidgets.FloatProgress(max=1.0)
        self.said = ipywidgets.HTML(EMPTY)
        self.jobs = ipywidgets.HTML()
        self.figure = go.FigureWidget(figures.live([]))
        self._live = ipywidgets.VBox([self.figure])
        self._live.layout.display = "none"
        self._concluded: RunHandle[RunRecord] | None = None
        """A run may tell of its end more than once."""
        self._drawing, self._due = threading.RLock(), 0.0
        buttons = ipywidgets.HBox([self.launch, self.stop, self.bar])
        super().__init__([self.settings, buttons, self.said, self.jobs, self._live])
        self.launch.on_click(self.guarded(lambda _: self.begin()))
        self.stop.on_click(self.guarded(lambda _: self.end()))
        self.settings.on_bound(self.guarded(self._steer))
        self.on_theme(self._recolour)

    def begin(self) -> RunHandle[RunRecord]:
        """Launches what the controls say; as the button does.

        Raises:
            RunError: one is under way.
        """
        if self.run is not None and self.run.state == "running":
            raise RunError("a run of this panel is under way (stop it first)")
        run = self.run = start(launch, self.plan, **self.settings.arguments())
        self.launch.disabled, self.stop.disabled = True, False
        self.settings.lock(run.bound_refusal)
        sampler = Sampler()
        devices = TelemetryPanel(sampler)
        # Two buttons that say Stop would be one too many; this one's end comes with the run's.
        devices.stop.layout.display = "none"
        self._live.children, self._live.layout.display = (self.figure, devices), None
        run.watch(lambda: self._follow(run))
        run.watch(lambda: None if run.state == "running" else sampler.close())
        return run

    def end(self) -> None:
        """Ends the run and all of its processes; as the button does."""
        if self.run is not None:
            self.run.request_cancel()

    def static(self) -> go.Figure:
        """What came of the last run; before there is one, the plan, whose gaps a background would fill."""
        if self.record is not None:
            return figures.collocation(self.record, dark=self.dark)
        return figures.timeline(self.plan, dark=self.dark)

    def _steer(self, bound: float) -> None:
        if self.run is not None and self.run.state == "running":
            self.run.change_bound(bound)

    def _recolour(self) -> None:
        with self._drawing:
            self._draw()

    def _follow(self, run: RunHandle[RunRecord]) -> None:
        """There is news; in the thread of the run."""
        if run is not self.run:
            return
        with self._drawing:
            ended = run.state != "running"
            if run is self._concluded or (not ended and time.monotonic() < self._due):
                return
            before = time.thread_time()
            try:
                self.bar.value, self.bar.bar_style = run.progress, COLOURS[run.state]
                self.said.value = html.escape(repr(run))
                self._draw()
                if ended:
                    self._concluded = run
                    self._conclude(run)
                else:
                    self.settings.lock(run.bound_refusal)
            # Whatever it is, the user is to see it, and the run goes on.
            except Exception as error:
                self.tell_problem(error)
            if ended:
                self.settings.free()
                self.launch.disabled, self.stop.disabled = False, True
            self._due = time.monotonic() + max(INTERVAL, SPARED * (time.thread_time() - before))

    def _draw(self) -> None:
        samples = () if self.run is None else self.run.samples
        become(self.figure, figures.live(samples, dark=self.dark))
        self.jobs.value = describe_jobs(samples[-1].background) if samples else ""

    def _conclude(self, run: RunHandle[RunRecord]) -> None:
        """It is over: the record is kept, or it is told why there is none."""
        # Those that died by themselves stay named.
        last = run.samples[-1].background if run.samples else ()
        self.jobs.value = describe_jobs(job for job in last if job.reason is not None)
        if run.state == "failed" and run.error is not None:
            self.tell_problem(run.error)
        if run.state != "done":
            return
        self.record = run.result()
        self.path = save_run(self.record, self._folder)
        self.said.value = (
            f"{html.escape(repr(run))}. The record is <code>{html.escape(str(self.path))}</code> and "
            f"<code>panel.record</code>:<pre>{html.escape(str(self.record))}</pre>"
        )


def describe_jobs(jobs: Iterable[BackgroundSample]) -> str:
    """HTML: a line for each background job, and why it has ended where it has."""
    return "<br>".join(
        f'<span role="alert" style="color: var(--jp-error-color1, #b00)">background of rank {job.rank} has ended after '
        f"{job.steps} steps: {html.escape(job.reason)}; the foreground goes on</span>"
        if job.reason is not None
        else f"background of rank {job.rank}: {job.state}, {job.steps} steps, {job.samples} samples"
        for job in jobs
    )

"""Sliders for the amplification limit, GPUs, batch and network, the plan for their values, and why it is so."""

import functools
import html
import threading
from pathlib import Path
from typing import Any

import ipywidgets
import plotly.graph_objects as go
import traitlets

from deeppool import figures
from deeppool.base.arguments import typed
from deeppool.cluster.cluster import Cluster
from deeppool.errors import DeeppoolError, RunError
from deeppool.execution.ranks import check_ranks
from deeppool.planning.plan import LimitScope, Plan
from deeppool.planning.report.as_code import plan_command, plan_python
from deeppool.planning.report.summary import summarise
from deeppool.planning.request import check_limit
from deeppool.processes.launcher import LocalLauncher
from deeppool.profiling.default_cluster import cluster_for
from deeppool.profiling.table import Profile
from deeppool.records import files
from deeppool.widgets.code_box import CodeBox
from deeppool.widgets.collocation_panel import CollocationPanel
from deeppool.widgets.controls import LABEL
from deeppool.widgets.exploration import PlanCache, PlanQuery
from deeppool.widgets.latest_task import LatestTask
from deeppool.widgets.layer_figure import LayerFigure
from deeppool.widgets.layer_reasons import LayerReasons
from deeppool.widgets.markup import status_text
from deeppool.widgets.panel import Panel, alert
from deeppool.widgets.plan_comparison import PlanComparison
from deeppool.widgets.plan_controls import PlanControls

SEARCHING = "A faster plan or a better bound is being searched for."
FAILED = "The search for a faster plan or a better bound failed: "

Asked = tuple[PlanQuery, float | None]
"""A query and a limit."""


class AmplificationExplorer(Panel):
    """Shows the plan for the slider values, its position among all efficient plans, and its layers.

    A click on a layer, in its bars or in the graph of the model, shows the costs of its other GPU counts. The panel
    updates while a slider moves. What takes seconds for a model with many branches is computed in background threads,
    of which a newer query cancels the older ones: the frontier, and a search for faster plans and better bounds than
    that of the plan that is displayed at once.
    """

    plan: Any = traitlets.Any(read_only=True)
    """The displayed plan, to observe or to link."""
    selected: Any = traitlets.Unicode()
    """Name of the layer whose other GPU counts are shown, to set, to observe or to link; empty: none."""

    @typed
    def __init__(
        self,
        profile: Profile,
        *,
        gpus: int = 8,
        global_batch: int = 32,
        amplification_limit: float | None = 2.0,
        cluster: Cluster | str | None = None,
        limit_scope: LimitScope = "layer",
        background: Profile | None = None,
    ) -> None:
        """Computes and draws the first plan.

        Args:
            profile: layer times.
            gpus: initial number of GPUs.
            global_batch: initial samples per iteration.
            amplification_limit: as for ``dp.plan``; None: no limit.
            cluster: a preset's name, a cluster file, or a cluster, whose own number of GPUs is ignored; None: that of
                the profile's device.
            limit_scope: as for ``dp.plan``.
            background: profile of the job that shares the cluster; by default the same model.

        Raises:
            InvalidValueError, PlanError, MissingProfileError: as for ``dp.plan``.
        """
        check_limit(amplification_limit)
        self._plans = PlanCache(profile, background or profile, limit_scope)
        if not isinstance(cluster, Cluster):
            cluster = cluster_for(profile, 1, cluster)
        self.controls = PlanControls(
            gpus=gpus, global_batch=global_batch, amplification_limit=amplification_limit, cluster=cluster
        )
        self.limit, self.gpus, self.global_batch, self.speed, self.cluster = self.controls.all
        self._drawing, self._search_task = threading.RLock(), LatestTask()
        self._failure: Exception | None = None
        self._refusal: DeeppoolError | None = None
        """Why there is no plan for the controls, while an earlier one is shown faded; None: there is one."""
        self._query, self._plan = self._search()
        # Figures are whole when they are made: a page that is slow to begin with misses what is sent after that.
        self.compared = PlanComparison(self._plans, self._query, self._plan)
        self.layer_figure, self.reasons = LayerFigure(self._plan), LayerReasons(self._plan)
        self.comparison, self.layers = self.compared.figure, self.layer_figure.figure
        self.alternatives = self.reasons.figure
        self._make_outputs()
        super().__init__(
            [
                self.controls.grid,
                self.controls.corrections,
                self.summary,
                self.compared,
                self.layer_figure,
                self.reasons,
                ipywidgets.HBox([self.file, self.button]),
                self.save_status,
                self.code,
                self.run,
            ],
            error_after=self.controls.grid,
        )
        self._connect()
        self.set_trait("plan", self._plan)
        self._draw()
        self._request_search()

    def _make_outputs(self) -> None:
        """Makes what is below the figures, and the sentence above them."""
        self.summary = ipywidgets.HTML()
        self.summary.add_class("dp-summary")
        self._default_name = ""
        self.file = ipywidgets.Text(description="file", style=LABEL, layout=ipywidgets.Layout(width="60%"))
        self.button, self.save_status = ipywidgets.Button(description="Save plan"), ipywidgets.HTML()
        self.run_here = ipywidgets.Button(
            description="Run this here", tooltip="run the plan on this machine", layout={"width": "auto"}
        )
        self.code = CodeBox(
            lambda: plan_python(self._current_plan()), lambda: plan_command(self._current_plan()), self.run_here
        )
        self.run = ipywidgets.VBox()
        """A :class:`deeppool.widgets.CollocationPanel` of the plan that is to run here; empty at first."""

    def _connect(self) -> None:
        """Registers the callbacks."""
        for part in (self.compared, self.layer_figure, self.reasons, self.code):
            part.connect(self)
        self.controls.connect(self, self._on_control_change)
        traitlets.link((self, "selected"), (self.reasons.layer, "value"))
        self.observe(self.guarded(lambda _: self._draw_layers()), "selected")
        self.on_click(self.button, self._on_save)
        self.on_click(self.run_here, self.prepare_run)
        self.on_theme(self._draw)

    def save(self, path: str | Path | None = None) -> Path:
        """Writes the displayed plan to a file, for ``deeppool run`` or ``dp.load``.

        Args:
            path: file to write; by default the one named in the panel.

        Raises:
            DocumentError: the file cannot be written.
            DeeppoolError: there is no plan for the controls; says why.
        """
        written = files.save(self._current_plan(), path or self.file.value).resolve()
        self.save_status.value = f'<span role="status">saved: {html.escape(str(written))}</span>'
        return written

    def prepare_run(self) -> CollocationPanel:
        """Shows a panel that runs the displayed plan on this machine, beside a background job; starts nothing yet.

        Raises:
            RunError: a run of the panel before is still running; or this machine has too few GPUs or cores, or too
                little memory: the page offers as many as there are.
            DeeppoolError: there is no plan for the controls; says why.
        """
        plan, before = self._current_plan(), self.run.children
        if any(panel.run is not None and panel.run.state == "running" for panel in before):
            raise RunError("a run of this explorer is still running (stop it first)")
        launcher = LocalLauncher(plan.device, plan.gpus)
        check_ranks(plan, launcher)
        if launcher.cores < plan.gpus:
            self.controls.offer_gpus(launcher.cores)
            raise RunError(f"the plan needs {plan.gpus} cores, this machine has {launcher.cores} (plan for as many)")
        panel = CollocationPanel(plan)
        self.run.children = (panel,)
        for old in before:
            old.close()
        return panel

    def clear_error(self) -> None:
        """Removes the displayed error; while there is no plan for the controls, the reason stays."""
        if self._refusal is None:
            super().clear_error()
        else:
            self.show_error(self._refusal)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until plan, comparison and the selected layer's costs are final; False after ``timeout`` seconds."""
        return all(task.wait(timeout) for task in (self._search_task, self.compared.task, self.reasons.task))

    def static(self) -> go.Figure:
        """Returns the frontier figure, with the plan of the controls marked."""
        with self._drawing:
            query, limit = self._asked
        return figures.frontier(self._plans.frontier(query), self._plans.plan(query, limit), dark=self.dark)

    # -- from controls to a plan --------------------------------------------------------------------

    @property
    def _asked(self) -> Asked:
        return self._query, self._plan.amplification_limit

    def _search(self) -> tuple[PlanQuery, Plan]:
        query = self.controls.query
        return query, self._plans.quick_plan(query, self.controls.amplification_limit)

    def _on_control_change(self, _: object) -> None:
        # Callbacks of two controls may run in two threads; the last one reads both values.
        with self._drawing:
            self._failure = None
            self._cancel_searches()
            try:
                self._query, self._plan = self._search()
            except DeeppoolError as error:
                self._refusal = error
                self._fade_all()
                self.controls.offer_batch_or_gpus()
                raise
            if self._refusal is not None:
                self._refusal, self.save_status.value = None, ""
            self._mark_outdated(False)
            self.controls.corrections.children = ()
            self.summary.layout.visibility = "visible"
            self._draw()
            self.set_trait("plan", self._plan)
            self._request_search()

    def _current_plan(self) -> Plan:
        """Returns the plan of the controls.

        Raises:
            DeeppoolError: there is none; says why.
        """
        if self._refusal is not None:
            raise self._refusal
        return self._plan

    def _cancel_searches(self) -> None:
        """Ends what is searched for other values of the controls: it would slow the next search down."""
        self._search_task.cancel()
        if self.controls.query != self._query:
            self.compared.task.cancel()

    def _request_search(self) -> None:
        """Searches in the background for a better plan or bound, unless the displayed plan's is near."""
        asked = self._asked
        if not self._plans.is_known(*asked):
            on_plan, on_failure = (functools.partial(end, asked) for end in (self._on_plan, self._on_failure))
            self._search_task.submit(asked, lambda: self._best_plan(asked), on_plan, on_failure)

    def _best_plan(self, asked: Asked) -> Plan:
        """Returns the best plan; shows the one that is found first meanwhile."""
        self._on_plan(asked, self._plans.first_plan(*asked))
        return self._plans.plan(*asked)

    def _on_plan(self, asked: Asked, plan: Plan) -> None:
        with self._drawing:
            if asked == self._asked and plan is not self._plan:
                self._plan = plan
                self._draw()
                self.set_trait("plan", plan)

    def _on_failure(self, asked: Asked, error: Exception) -> None:
        with self._drawing:
            if asked == self._asked:
                self._failure = error
                self._draw_summary()

    def _on_save(self) -> None:
        try:
            self.save()
        except DeeppoolError as error:
            self.save_status.value = alert(error)

    # -- from a plan to the page --------------------------------------------------------------------

    def _draw(self) -> None:
        with self._drawing:
            self._draw_summary()
            # Requested now, so that it is often ready when the layers are drawn.
            self.compared.request(self._query)
            self._update_file_name(self._plan)
            self._draw_layers()
            self.compared.draw(self._query, self._plan, dark=self.dark)

    def _draw_summary(self) -> None:
        """Writes the sentence of the plan, and whether a search for a better one goes on or failed."""
        text, failed = html.escape(summarise(self._plan)), ""
        if self._failure is not None:
            failed = alert(self._failure, FAILED)
        elif not self._plans.is_known(*self._asked):
            text += f" {status_text(SEARCHING)}"
        self.summary.value = f'<p style="line-height: 1.4; margin: 4px 0">{text}</p>{failed}'

    def _draw_layers(self) -> None:
        with self._drawing:
            for part in (self.layer_figure, self.reasons):
                part.draw(self._plan, self.selected, dark=self.dark)

    def _fade_all(self) -> None:
        """Shows that nothing below the controls belongs to their values."""
        self.summary.layout.visibility = "hidden"
        self._mark_outdated(True)
        self.compared.fade()
        self.layers.fade()
        self.alternatives.fade()

    def _mark_outdated(self, outdated: bool) -> None:
        for figure in (self.comparison, self.layers, self.alternatives):
            figure.outdated = outdated

    def _update_file_name(self, plan: Plan) -> None:
        """Suggests a file name from the plan's parameters unless the user typed one."""
        if self.file.value == self._default_name:
            limit = "none" if plan.amplification_limit is None else f"{plan.amplification_limit:g}"
            name = f"{plan.model}-{plan.gpus}gpus-batch{plan.global_batch}-limit{limit}"
            self._default_name = files.file_name(name)
            self.file.value = self._default_name

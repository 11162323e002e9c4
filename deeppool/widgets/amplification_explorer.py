"""Sliders for the amplification limit, GPUs, batch and network, the plan for their values, and why it is so."""

import functools
import html
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets
import plotly.graph_objects as go
import traitlets

from deeppool import figures
from deeppool.cluster.cluster import PRESETS, Cluster, find_cluster
from deeppool.errors import DeeppoolError, RunError
from deeppool.execution.ranks import check_ranks
from deeppool.figures import theme
from deeppool.figures.frontier import frontier_mark
from deeppool.figures.throughput import throughput_mark
from deeppool.planning.plan import LimitScope, Plan
from deeppool.planning.report.alternatives import PlanAlternatives, alternatives_of
from deeppool.planning.report.as_code import plan_command, plan_python
from deeppool.planning.report.summary import summarise
from deeppool.planning.request import check_limit
from deeppool.planning.search.frontier import Frontier
from deeppool.planning.studies.tradeoff_record import SharedCluster
from deeppool.processes.launcher import LocalLauncher
from deeppool.profiling.table import Profile
from deeppool.records import files
from deeppool.units import format_bit_rate
from deeppool.widgets.code_box import CodeBox
from deeppool.widgets.collocation_panel import CollocationPanel
from deeppool.widgets.controls import LABEL, choice, grid, powers, steps
from deeppool.widgets.exploration import PlanCache, PlanQuery, View, at_speed
from deeppool.widgets.latest_task import LatestTask
from deeppool.widgets.layer_figure import LayerFigure
from deeppool.widgets.live_figure import figure_lock, prepare_figure, update_figure, update_trace
from deeppool.widgets.panel import Panel, alert

LIMITS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 16.0, math.inf)
"""Values of the limit slider, finer where plans change most."""
MOST_GPUS, MOST_SAMPLES = 1024, 65_536
SPEEDS = tuple(gigabits * 1e9 / 8 for gigabits in (1, 10, 25, 50, 100, 200, 400, 800, 1600, 2400, 3600, 4800))
"""Bytes per second of a GPU's link, each direction."""
FADED = 0.25
"""Opacity of a comparison that belongs to the previous control values."""
COMPARISON_HEIGHT = 452
"""Pixels, also of the empty placeholder."""
INITIAL_WAIT = 0.5
"""Seconds that the constructor waits for the first comparison; a slower one is drawn later."""
SEARCHING = "A faster plan or a better bound is being searched for."
_VIEWS: dict[str, View] = {"all efficient plans": "frontier", "static partitions": "shared"}
_BUTTONS = {**LABEL, "button_width": "auto"}


class AmplificationExplorer(Panel):
    """Shows the plan for the slider values, its position among all efficient plans, and its layers.

    A click on a layer, in its bars or in the graph of the model, shows the costs of its other GPU counts. The panel
    updates while a slider moves. What takes seconds for a model with many branches is computed in background threads,
    of which a newer query cancels the older ones: the frontier, and a search that may replace the plan, which is first
    shown as found without proof, by a faster one or one with a better bound.
    """

    plan: Any = traitlets.Any(read_only=True)
    """The displayed plan, to observe or to link."""
    selected: Any = traitlets.Unicode()
    """Name of the layer whose other GPU counts are shown, to set, to observe or to link; empty: none."""

    def __init__(
        self,
        profile: Profile,
        *,
        gpus: int = 8,
        global_batch: int = 32,
        amplification_limit: float | None = 2.0,
        cluster: Cluster | str = "dgx-a100",
        limit_scope: LimitScope = "layer",
        background: Profile | None = None,
    ) -> None:
        """Computes and draws the first plan.

        Args:
            profile: layer times.
            gpus: initial number of GPUs.
            global_batch: initial samples per iteration.
            amplification_limit: as for ``dp.plan``; None: no limit.
            cluster: a preset's name, a cluster file, or a cluster, whose own number of GPUs is ignored.
            limit_scope: as for ``dp.plan``.
            background: profile of the job that shares the cluster; by default the same model.

        Raises:
            InvalidValueError, PlanError, MissingProfileError: as for ``dp.plan``.
        """
        check_limit(amplification_limit)
        self._plans = PlanCache(profile, background or profile, limit_scope)
        chosen = _as_cluster(cluster)
        self._clusters = {**PRESETS, chosen.name: chosen}
        limit = math.inf if amplification_limit is None else amplification_limit
        self.limit = steps("amplification limit (×)", {_limit(x): x for x in sorted({*LIMITS, limit})}, limit)
        self.gpus = steps("GPUs", powers(MOST_GPUS, gpus), gpus)
        self.global_batch = steps("global batch (samples)", powers(MOST_SAMPLES, global_batch), global_batch)
        speeds = {"cluster's own": 0.0, **{format_bit_rate(speed): speed for speed in SPEEDS}}
        self.speed = steps("link speed of a GPU", speeds, 0.0)
        self.cluster = choice("cluster", list(self._clusters), chosen.name)
        self.view = ipywidgets.ToggleButtons(description="compared with", options=_VIEWS, style=_BUTTONS)
        self.summary, self.comparison_status = ipywidgets.HTML(), ipywidgets.HTML()
        self.summary.add_class("dp-summary")
        self.file = ipywidgets.Text(description="file", style=LABEL, layout=ipywidgets.Layout(width="60%"))
        self.button, self.save_status = ipywidgets.Button(description="Save plan"), ipywidgets.HTML()
        self.run_here = ipywidgets.Button(
            description="Run this here", tooltip="run the plan on this machine", layout={"width": "auto"}
        )
        self.code = CodeBox(
            lambda: plan_python(self._plan),
            lambda: plan_command(self._plan),
            self.run_here,
        )
        self.run = ipywidgets.VBox()
        """A :class:`deeppool.widgets.CollocationPanel` of the plan that is to run here; empty at first."""
        self.corrections = ipywidgets.HBox()
        """Buttons that set a control to a value with which there is a plan; empty while there is one."""
        self._drawing, self._task = threading.RLock(), LatestTask()
        self._proof, self._explanation = LatestTask(), LatestTask()
        self._drawn: object = None
        self._failure: tuple[tuple[View, PlanQuery] | None, Exception | None] = (None, None)
        self._default_name, self._is_open = "", False
        self._query, self._plan = self._search()
        # Whole when they are made: a page that is slow to begin with misses what is sent after that.
        self.layer_figure = LayerFigure(self._plan)
        self.layers = self.layer_figure.figure
        self.layer = ipywidgets.Combobox(
            description="why this many GPUs",
            placeholder="type a layer's name, or click a layer above",
            options=[layer.name for layer in self._plan.layers],
            continuous_update=False,
            style=LABEL,
            layout=ipywidgets.Layout(width="36em", max_width="calc(100% - 4px)"),
        )
        self.alternatives = go.FigureWidget()
        prepare_figure(self.alternatives)
        # Filled when a layer is selected: plotly cannot determine its width while it is hidden.
        self._why = ipywidgets.VBox()
        self.comparison = go.FigureWidget(self._first_comparison())
        controls = grid(self.limit, self.gpus, self.global_batch, self.speed, self.cluster)
        super().__init__(
            [
                controls,
                self.corrections,
                self.summary,
                self.view,
                self.comparison,
                self.comparison_status,
                self.layer_figure,
                self.layer,
                self._why,
                ipywidgets.HBox([self.file, self.button]),
                self.save_status,
                self.code,
                self.run,
            ],
            error_after=controls,
        )
        self._is_open = True
        self.set_trait("plan", self._plan)
        self.layer_figure.connect(self)
        self._draw()
        self._request_proof()
        for control in (self.limit, self.gpus, self.global_batch, self.cluster, self.speed):
            control.observe(self.guarded(self._on_control_change), "value")
        self.view.observe(self.guarded(self._on_view_change), "value")
        traitlets.link((self, "selected"), (self.layer, "value"))
        self.observe(self.guarded(lambda _: self._on_selection_change()), "selected")
        self.on_click(self.button, self._on_save)
        self.code.connect(self)
        self.on_click(self.run_here, self.prepare_run)
        self.on_theme(self._draw)

    def save(self, path: str | Path | None = None) -> Path:
        """Writes the displayed plan to a file, for ``deeppool run`` or ``dp.load``.

        Args:
            path: file to write; by default the one named in the panel.

        Raises:
            DocumentError: the file cannot be written.
        """
        written = files.save(self.plan, path or self.file.value).resolve()
        self.save_status.value = f'<span role="status">saved: {html.escape(str(written))}</span>'
        return written

    def prepare_run(self) -> CollocationPanel:
        """Shows a panel that runs the displayed plan on this machine, beside a background job; starts nothing yet.

        Raises:
            RunError: this machine has too few GPUs or cores, or too little memory; the page offers as many as there
                are.
        """
        launcher = LocalLauncher(self._plan.device, self._plan.gpus)
        check_ranks(self._plan, launcher)
        if launcher.cores < self._plan.gpus:
            fitting = max(count for _, count in self.gpus.options if count <= launcher.cores)
            self._offer({f"use {fitting} GPU{'s' * (fitting > 1)}": (self.gpus, fitting)})
            raise RunError(
                f"the plan needs {self._plan.gpus} cores, this machine has {launcher.cores} (plan for as many)"
            )
        panel = CollocationPanel(self._plan)
        self.run.children = (panel,)
        return panel

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until plan, comparison and the selected layer's costs are final; False after ``timeout`` seconds."""
        return all(task.wait(timeout) for task in (self._proof, self._task, self._explanation))

    def static(self) -> go.Figure:
        """Returns the frontier figure, with the plan of the controls marked."""
        with self._drawing:
            query, limit = self._query, self._plan.amplification_limit
        return figures.frontier(self._plans.frontier(query), self._plans.plan(query, limit), dark=self.dark)

    # -- from controls to a plan --------------------------------------------------------------------

    def _search(self) -> tuple[PlanQuery, Plan]:
        cluster = replace(self._clusters[self.cluster.value], gpus=self.gpus.value)
        query = PlanQuery(at_speed(cluster, self.speed.value or None), self.global_batch.value)
        limit = None if math.isinf(self.limit.value) else self.limit.value
        return query, self._plans.first_plan(query, limit)

    def _on_control_change(self, _: object) -> None:
        # Callbacks of two controls may run in two threads; the last one reads both values.
        with self._drawing:
            try:
                self._query, self._plan = self._search()
            except DeeppoolError:
                self._proof.cancel()
                self._fade_all()
                self._offer_corrections()
                raise
            self.corrections.children = ()
            self.summary.layout.visibility = "visible"
            self._draw()
            self.set_trait("plan", self._plan)
            self._request_proof()

    def _is_final(self) -> bool:
        return self._plans.is_known(self._query, self._plan.amplification_limit)

    def _request_proof(self) -> None:
        """Searches in the background for a better plan or bound, unless the displayed plan's is near."""
        asked = self._query, self._plan.amplification_limit
        if self._is_final():
            self._proof.cancel()
            return
        on_proof = functools.partial(self._on_proof, asked)
        self._proof.submit(asked, lambda: self._plans.plan(*asked), on_proof, self.show_error)

    def _on_proof(self, asked: tuple[PlanQuery, float | None], plan: Plan) -> None:
        with self._drawing:
            if asked != (self._query, self._plan.amplification_limit):
                return
            self._plan = plan
            self._draw()
            self.set_trait("plan", plan)

    def _on_save(self) -> None:
        try:
            self.save()
        except DeeppoolError as error:
            self.save_status.value = alert(error)

    def _on_view_change(self, _: object) -> None:
        self._request_comparison()
        self._draw_comparison()

    # -- from a plan to figures ---------------------------------------------------------------------

    def _first_comparison(self) -> go.Figure:
        self._request_comparison()
        self._task.wait(INITIAL_WAIT)
        cached = self._cached_comparison()
        if cached is None:
            return go.Figure(layout={"template": theme.template(), "height": COMPARISON_HEIGHT})
        self._drawn = (self.view.value, self._query, False)
        _, draw = _FIGURES[self.view.value]
        return draw(cached, self._plan)

    def _draw(self) -> None:
        # Requested first, so that it is often ready when the layers are drawn.
        self._request_comparison()
        with self._drawing:
            plan = self._plan
            text = html.escape(summarise(plan)) + ("" if self._is_final() else f' <em role="status">{SEARCHING}</em>')
            self.summary.value = f'<p style="line-height: 1.4; margin: 4px 0">{text}</p>'
            self._update_file_name(plan)
            self.layer_figure.draw(plan, self.selected, dark=self.dark)
        self._draw_comparison()
        self._draw_alternatives()

    def _on_selection_change(self) -> None:
        with self._drawing:
            self.layer_figure.draw(self._plan, self.selected, dark=self.dark)
        self._draw_alternatives()

    def _draw_alternatives(self) -> None:
        """Shows the costs of the selected layer's GPU counts, computed in the background."""
        with self._drawing:
            plan, name = self._plan, self.selected.strip()
            if not name:
                self._explanation.cancel()
                self._why.children = ()
                return
            self._fade(self.alternatives)
        self._explanation.submit(
            (id(plan), name),
            lambda: alternatives_of(plan, name),
            self._on_alternatives_ready,
            self._on_alternatives_failed,
        )

    def _on_alternatives_ready(self, found: PlanAlternatives) -> None:
        with self._drawing:
            if [layer.name for layer in found.layers] == [self.selected.strip()]:
                update_figure(self.alternatives, figures.alternatives(found, dark=self.dark))
                self._why.children = (self.alternatives,)

    def _on_alternatives_failed(self, error: Exception) -> None:
        self._why.children = ()
        self.show_error(error)

    def _draw_comparison(self) -> None:
        """Draws the comparison if it is cached; otherwise fades the previous one until the result is ready."""
        with self._drawing:
            cached = self._cached_comparison()
            if cached is None:
                self._fade(self.comparison)
                self.comparison_status.value = self._waiting_text()
                return
            shown = (self.view.value, self._query, self.dark)
            mark, draw = _FIGURES[self.view.value]
            if shown == self._drawn:
                update_trace(self.comparison, mark(cached, self._plan))
            else:
                update_figure(self.comparison, draw(cached, plan=self._plan, dark=self.dark))
            self.comparison_status.value, self._drawn = "", shown

    def _cached_comparison(self) -> Frontier | SharedCluster | None:
        return self._plans.cached(self.view.value, self._query)

    def _request_comparison(self) -> None:
        """Computes the selected comparison in the background unless it is cached."""
        query, view = self._query, self.view.value
        if self._cached_comparison() is not None:
            self._task.cancel()
            return

        def fail(error: Exception) -> None:
            self._failure = (view, query), error
            self._on_comparison_ready(error)

        self._failure = None, None
        self._task.submit(
            (view, query),
            lambda: self._plans.compare(view, query),
            self._on_comparison_ready,
            fail,
        )

    def _on_comparison_ready(self, _: object) -> None:
        # Before the constructor ends there is no figure to draw on.
        if self._is_open:
            self._draw_comparison()

    def _waiting_text(self) -> str:
        what = html.escape(f"The {_VIEW_NAMES[self.view.value]} of {self._query}")
        failed, error = self._failure
        if failed == (self.view.value, self._query):
            return f'<span role="alert">{what} cannot be computed: {html.escape(str(error))}</span>'
        return f'<span role="status">{what} is being computed; the faded figure is for the previous values.</span>'

    def _fade_all(self) -> None:
        """Shows that nothing below the controls belongs to their values."""
        self.summary.layout.visibility = "hidden"
        self._fade(self.comparison)
        self._fade(self.layers)
        self._fade(self.alternatives)

    def _fade(self, figure: go.FigureWidget) -> None:
        self._drawn = None
        with figure_lock(figure), figure.batch_update():
            for trace in figure.data:
                trace.opacity = FADED

    def _offer_corrections(self) -> None:
        """Offers to change the batch or the GPUs where there are too few samples for them."""
        gpus, batch = self.gpus.value, self.global_batch.value
        if gpus <= batch:
            self.corrections.children = ()
            return
        fitting = max(count for _, count in self.gpus.options if count <= batch)
        enough = min((size for _, size in self.global_batch.options if size >= gpus), default=batch)
        self._offer(
            {
                f"use batch {enough:,}": (self.global_batch, enough),
                f"use {fitting:,} GPU{'s' * (fitting > 1)}": (self.gpus, fitting),
            }
        )

    def _offer(self, changes: Mapping[str, tuple[ipywidgets.Widget, int]]) -> None:
        """Shows a button per change, which sets a control to a value."""
        buttons = []
        for text, (control, value) in changes.items():
            button = ipywidgets.Button(description=text, layout={"width": "auto"})
            self.on_click(button, functools.partial(setattr, control, "value", value))
            buttons.append(button)
        self.corrections.children = tuple(buttons)

    def _update_file_name(self, plan: Plan) -> None:
        """Suggests a file name from the plan's parameters unless the user typed one."""
        if self.file.value == self._default_name:
            limit = "none" if plan.amplification_limit is None else f"{plan.amplification_limit:g}"
            self._default_name = f"{plan.model}-{plan.gpus}gpus-batch{plan.global_batch}-limit{limit}.json"
            self.file.value = self._default_name


_VIEW_NAMES: dict[View, str] = {"frontier": "frontier", "shared": "shared cluster"}
_FIGURES: dict[View, tuple[Callable[..., Any], Callable[..., go.Figure]]] = {
    "frontier": (frontier_mark, figures.frontier),
    "shared": (throughput_mark, figures.throughput),
}


def _as_cluster(cluster: Cluster | str) -> Cluster:
    return find_cluster(cluster, 1) if isinstance(cluster, str) else cluster


def _limit(limit: float) -> str:
    return "no limit" if math.isinf(limit) else f"{limit:g}"

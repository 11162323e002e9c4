"""Sliders for the amplification limit, GPUs, batch and network, and the plan that they ask for."""

import html
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets
import plotly.graph_objects as go

from deeppool import figures
from deeppool.cluster.cluster import PRESETS, Cluster, find_cluster
from deeppool.figures import theme
from deeppool.figures.frontier import frontier_mark
from deeppool.figures.throughput import throughput_mark
from deeppool.planning.plan import LimitScope, Plan
from deeppool.planning.report.summary import summarise
from deeppool.planning.request import check_limit
from deeppool.planning.search.frontier import Frontier
from deeppool.planning.studies.tradeoff_record import SharedCluster
from deeppool.profiling.table import Profile
from deeppool.records import files
from deeppool.units import format_bit_rate
from deeppool.widgets.controls import LABEL, choice, grid, powers, steps
from deeppool.widgets.exploration import Exploration, Question, View, at_speed
from deeppool.widgets.latest import Latest
from deeppool.widgets.live_figure import become, move
from deeppool.widgets.panel import Panel

LIMITS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 16.0, math.inf)
"""Steps of the slider, finer where plans change most."""
MOST_GPUS, MOST_SAMPLES = 1024, 65_536
SPEEDS = tuple(gigabits * 1e9 / 8 for gigabits in (1, 10, 25, 50, 100, 200, 400, 800, 1600, 2400, 3600, 4800))
"""Bytes per second of a GPU's link, each direction."""
FADED = 0.25
"""Opacity of what belongs to the question before."""
COMPARISON_HEIGHT = 452
"""Pixels, also while there is nothing to see yet."""
PATIENCE = 0.5
"""Seconds that an explorer may take to open with a frontier; a longer one comes later."""
_VIEWS: dict[str, View] = {"all efficient plans": "frontier", "static partitions": "shared"}
_BUTTONS = {**LABEL, "button_width": "auto"}


class AmplificationExplorer(Panel):
    """Follows its sliders while they move: the plan, where it lies among all efficient ones, and its layers.

    What takes long (the frontier of a model with many branches) is computed beside, and the newest question wins.
    """

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
        """Plans for the first time.

        Args:
            profile: layer times.
            gpus: of the cluster, to begin with.
            global_batch: samples an iteration.
            amplification_limit: as for ``dp.plan``; None: no limit.
            cluster: a preset's name, a cluster file, or a cluster, whose number of GPUs does not count.
            limit_scope: as for ``dp.plan``.
            background: of the job that shares the cluster; the same model unless given.

        Raises:
            InvalidValueError, PlanError, MissingProfileError: as for ``dp.plan``.
        """
        check_limit(amplification_limit)
        self._exploration = Exploration(profile, background or profile, limit_scope)
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
        self.summary, self.note = ipywidgets.HTML(), ipywidgets.HTML()
        self.file = ipywidgets.Text(description="file", style=LABEL, layout=ipywidgets.Layout(width="60%"))
        self.button, self.saved = ipywidgets.Button(description="Save plan"), ipywidgets.HTML()
        self._drawing, self._latest = threading.RLock(), Latest()
        self._watchers: list[Callable[[Plan], None]] = []
        self._drawn: object = None
        self._failure: tuple[tuple[View, Question] | None, Exception | None] = (None, None)
        self._named, self._opened = "", False
        self._question, self._plan = self._search()
        # Whole when they are made: a page that is slow to begin with misses what is sent after that.
        self.layers = go.FigureWidget(figures.layers(self._plan))
        self.comparison = go.FigureWidget(self._first_comparison())
        super().__init__(
            [
                grid(self.limit, self.gpus, self.global_batch, self.speed, self.cluster),
                self.summary,
                self.view,
                self.comparison,
                self.note,
                self.layers,
                ipywidgets.HBox([self.file, self.button]),
                self.saved,
            ]
        )
        self._opened = True
        self._draw()
        for control in (self.limit, self.gpus, self.global_batch, self.cluster, self.speed):
            control.observe(self.guarded(self._turn), "value")
        self.view.observe(self.guarded(self._switch), "value")
        self.button.on_click(self.guarded(lambda _: self.save()))
        self.on_theme(self._draw)

    @property
    def plan(self) -> Plan:
        """The plan that is shown, with the reasons for its GPU counts (``plan.explain()``)."""
        with self._drawing:
            question, limit = self._question, self._plan.amplification_limit
        return self._exploration.plan(question, limit, explained=True)

    def save(self, path: str | Path | None = None) -> Path:
        """Writes the shown plan; for ``deeppool run``, ``dp.load`` and whoever asks how it was made.

        Args:
            path: of the file; the one in the panel unless given.

        Raises:
            DocumentError: the file cannot be written.
        """
        written = files.save(self.plan, path or self.file.value).resolve()
        self.saved.value = f'<span role="status">saved: {html.escape(str(written))}</span>'
        return written

    def watch(self, on_plan: Callable[[Plan], None]) -> None:
        """Has a function called with every plan that is shown from now on, without the reasons."""
        self._watchers.append(on_plan)

    def settle(self, timeout: float | None = None) -> bool:
        """Waits until everything that belongs to the shown plan is drawn; whether it was within ``timeout`` seconds."""
        return self._latest.wait(timeout)

    def static(self) -> go.Figure:
        """The plan among all efficient ones."""
        with self._drawing:
            question, plan = self._question, self._plan
        return figures.frontier(self._exploration.frontier(question), plan, dark=self.dark)

    # -- from controls to a plan --------------------------------------------------------------------

    def _search(self) -> tuple[Question, Plan]:
        cluster = replace(self._clusters[self.cluster.value], gpus=self.gpus.value)
        question = Question(at_speed(cluster, self.speed.value or None), self.global_batch.value)
        limit = None if math.isinf(self.limit.value) else self.limit.value
        return question, self._exploration.plan(question, limit)

    def _turn(self, _: object) -> None:
        # Two controls may turn in two threads; whoever is the last reads both.
        with self._drawing:
            self._question, self._plan = self._search()
            self._draw()
            for on_plan in self._watchers:
                on_plan(self._plan)

    def _switch(self, _: object) -> None:
        self._ask()
        self._draw_comparison()

    # -- from a plan to figures ---------------------------------------------------------------------

    def _first_comparison(self) -> go.Figure:
        self._ask()
        self._latest.wait(PATIENCE)
        known = self._known()
        if known is None:
            return go.Figure(layout={"template": theme.template(), "height": COMPARISON_HEIGHT})
        self._drawn = (self.view.value, self._question, False)
        _, draw = _FIGURES[self.view.value]
        return draw(known, self._plan)

    def _draw(self) -> None:
        # Asked first, so that it is often known when the layers are drawn.
        self._ask()
        with self._drawing:
            plan = self._plan
            self.summary.value = f'<p style="line-height: 1.4; margin: 4px 0">{html.escape(summarise(plan))}</p>'
            self._name_file(plan)
            become(self.layers, figures.layers(plan, dark=self.dark))
        self._draw_comparison()

    def _draw_comparison(self) -> None:
        """The comparison if it is known; else the one before, faded, until the worker calls this again."""
        with self._drawing:
            known = self._known()
            if known is None:
                self._fade()
                self.note.value = self._tell_waiting()
                return
            shown = (self.view.value, self._question, self.dark)
            mark, draw = _FIGURES[self.view.value]
            if shown == self._drawn:
                move(self.comparison, mark(known, self._plan))
            else:
                become(self.comparison, draw(known, plan=self._plan, dark=self.dark))
            self.note.value, self._drawn = "", shown

    def _known(self) -> Frontier | SharedCluster | None:
        return self._exploration.known(self.view.value, self._question)

    def _ask(self) -> None:
        """Has what is compared with computed, if it is not known; only what is shown is worth the time."""
        question, view = self._question, self.view.value
        if self._known() is not None:
            self._latest.drop()
            return

        def fail(error: Exception) -> None:
            self._failure = (view, question), error
            self._tell(error)

        self._failure = None, None
        self._latest.ask(
            (view, question),
            lambda: self._exploration.compare(view, question),
            self._tell,
            fail,
        )

    def _tell(self, _: object) -> None:
        # While the panel is made there is nothing to draw on.
        if self._opened:
            self._draw_comparison()

    def _tell_waiting(self) -> str:
        what = html.escape(f"The {_WORDS[self.view.value]} of {self._question}")
        failed, error = self._failure
        if failed == (self.view.value, self._question):
            return f'<span role="alert">{what} cannot be computed: {html.escape(str(error))}</span>'
        return f'<span role="status">{what} is being computed; what is faded answers the question before.</span>'

    def _fade(self) -> None:
        self._drawn = None
        with self.comparison.batch_update():
            for trace in self.comparison.data:
                trace.opacity = FADED

    def _name_file(self, plan: Plan) -> None:
        """A name that says what was asked, until the user writes one."""
        if self.file.value == self._named:
            limit = "none" if plan.amplification_limit is None else f"{plan.amplification_limit:g}"
            self._named = f"{plan.model}-{plan.gpus}gpus-batch{plan.global_batch}-limit{limit}.json"
            self.file.value = self._named


_WORDS: dict[View, str] = {"frontier": "frontier", "shared": "shared cluster"}
_FIGURES: dict[View, tuple[Callable[..., Any], Callable[..., go.Figure]]] = {
    "frontier": (frontier_mark, figures.frontier),
    "shared": (throughput_mark, figures.throughput),
}


def _as_cluster(cluster: Cluster | str) -> Cluster:
    return find_cluster(cluster, 1) if isinstance(cluster, str) else cluster


def _limit(limit: float) -> str:
    return "no limit" if math.isinf(limit) else f"{limit:g}"

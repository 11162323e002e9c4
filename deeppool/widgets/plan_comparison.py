"""A plan among all efficient plans, or among ways to share the cluster, computed in the background."""

import html
import threading
from collections.abc import Callable
from typing import Any

import ipywidgets
import plotly.graph_objects as go

from deeppool import figures
from deeppool.figures import theme
from deeppool.figures.frontier import frontier_mark
from deeppool.figures.throughput import throughput_mark
from deeppool.planning.plan import Plan
from deeppool.planning.search.frontier import Frontier
from deeppool.planning.studies.tradeoff_record import SharedCluster
from deeppool.widgets.controls import LABEL
from deeppool.widgets.exploration import PlanCache, PlanQuery, View
from deeppool.widgets.latest_task import LatestTask
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.markup import status_text
from deeppool.widgets.panel import Panel

HEIGHT = 452
"""Pixels, also of the empty placeholder."""
INITIAL_WAIT = 0.5
"""Seconds that the constructor waits for the first comparison; a slower one is drawn later."""
VIEWS: dict[str, View] = {"all efficient plans": "frontier", "static partitions": "shared"}
_NAMES: dict[View, str] = {"frontier": "frontier", "shared": "shared cluster"}
_FIGURES: dict[View, tuple[Callable[..., Any], Callable[..., go.Figure]]] = {
    "frontier": (frontier_mark, figures.frontier),
    "shared": (throughput_mark, figures.throughput),
}


class PlanComparison(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Part of a panel: buttons that choose the comparison, its figure with the plan marked, and what is computed now.

    While a comparison is computed, the figure of the previous one is faded.
    """

    def __init__(self, plans: PlanCache, query: PlanQuery, plan: Plan) -> None:
        """Draws the comparison of a plan, if it is computed soon."""
        self._plans, self._query, self._plan, self._dark = plans, query, plan, False
        self.view = ipywidgets.ToggleButtons(
            description="compared with",
            tooltip="what the plan is compared with",
            options=VIEWS,
            style={**LABEL, "button_width": "auto"},
        )
        self.status = ipywidgets.HTML()
        self.task, self._drawing = LatestTask(), threading.RLock()
        self._drawn: object = None
        self._failure: tuple[tuple[View, PlanQuery] | None, Exception | None] = (None, None)
        self._is_open = False
        # Whole when it is made: a page that is slow to begin with misses what is sent after that.
        self.figure = LiveFigure(self._first_figure())
        self._is_open = True
        super().__init__([self.view, self.figure, self.status])

    def connect(self, panel: Panel) -> None:
        """Makes errors of the buttons appear in a panel."""
        self.view.observe(panel.guarded(lambda _: self._on_view_change()), "value")

    def request(self, query: PlanQuery) -> None:
        """Begins to compute the chosen comparison in the background, unless it is cached."""
        view = self.view.value
        if self._plans.cached(view, query) is not None:
            self.task.cancel()
            return

        def fail(error: Exception) -> None:
            self._failure = (view, query), error
            self._on_ready(error)

        self._failure = None, None
        self.task.submit((view, query), lambda: self._plans.compare(view, query), self._on_ready, fail)

    def draw(self, query: PlanQuery, plan: Plan, *, dark: bool) -> None:
        """Displays the comparison of a plan if it is cached, else when it is computed."""
        with self._drawing:
            self._query, self._plan, self._dark = query, plan, dark
            self.request(query)
            self._redraw()

    def fade(self) -> None:
        """Shows that the figure belongs to other values."""
        with self._drawing:
            self._drawn = None
            self.figure.fade()

    def _first_figure(self) -> go.Figure:
        self.request(self._query)
        self.task.wait(INITIAL_WAIT)
        cached = self._cached()
        if cached is None:
            hidden = {"visible": False}
            return go.Figure(layout={"template": theme.template(), "height": HEIGHT, "xaxis": hidden, "yaxis": hidden})
        self._drawn = (self.view.value, self._query, False)
        _, draw = _FIGURES[self.view.value]
        return draw(cached, self._plan)

    def _on_view_change(self) -> None:
        self.request(self._query)
        self._redraw()

    def _redraw(self) -> None:
        with self._drawing:
            cached = self._cached()
            if cached is None:
                self.fade()
                with self.figure.turn:
                    self.figure.update_layout(template=theme.template(dark=self._dark))
                self.status.value = self._status_text()
                return
            shown = (self.view.value, self._query, self._dark)
            mark, draw = _FIGURES[self.view.value]
            if shown == self._drawn:
                self.figure.draw_trace(mark(cached, self._plan))
            else:
                self.figure.draw(draw(cached, plan=self._plan, dark=self._dark))
            self.status.value, self._drawn = "", None if self.figure.outdated else shown

    def _cached(self) -> Frontier | SharedCluster | None:
        return self._plans.cached(self.view.value, self._query)

    def _on_ready(self, _: object) -> None:
        # Before the constructor ends there is no figure to draw on.
        if self._is_open:
            self._redraw()

    def _status_text(self) -> str:
        what = html.escape(f"The {_NAMES[self.view.value]} of {self._query}")
        failed, error = self._failure
        if failed == (self.view.value, self._query):
            return f'<span role="alert">{what} cannot be computed: {html.escape(str(error))}</span>'
        faded = "; the faded figure is for the previous values" if self.figure.data else ""
        return status_text(f"{what} is being computed{faded}.")

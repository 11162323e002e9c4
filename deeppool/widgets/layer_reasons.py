"""Why a layer has its number of GPUs: the costs of its other numbers, computed in the background."""

import threading

import ipywidgets

from deeppool import figures
from deeppool.planning.plan import Plan
from deeppool.planning.report.alternatives import PlanAlternatives, alternatives_of
from deeppool.widgets.controls import LABEL
from deeppool.widgets.latest_task import LatestTask
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.panel import Panel


class LayerReasons(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Part of a panel that has a trait ``selected``: a layer's name to type, and the costs of its GPU counts."""

    def __init__(self, plan: Plan) -> None:
        """Shows no layer yet."""
        self.layer = ipywidgets.Combobox(
            description="why this many GPUs",
            placeholder="type a layer's name, or click a layer above",
            options=[layer.name for layer in plan.layers],
            continuous_update=False,
            style=LABEL,
            layout=ipywidgets.Layout(width="40em", max_width="calc(100% - 4px)"),
        )
        self.figure = LiveFigure()
        # Filled when a layer is selected: plotly cannot determine its width while it is hidden.
        self.shown = ipywidgets.VBox()
        self.task, self._drawing = LatestTask(), threading.RLock()
        self._selected, self._dark = "", False
        super().__init__([self.layer, self.shown])

    def connect(self, panel: Panel) -> None:
        """Makes errors appear in a panel."""
        self._panel = panel

    def draw(self, plan: Plan, selected: str, *, dark: bool) -> None:
        """Shows the costs of a layer's GPU counts when they are computed; no name: hides them."""
        with self._drawing:
            self._selected, self._dark = selected.strip(), dark
            if not self._selected:
                self.task.cancel()
                self.shown.children = ()
                return
            self.figure.fade()
            name = self._selected
        self.task.submit((id(plan), name), lambda: alternatives_of(plan, name), self._on_ready, self._on_failure)

    def _on_ready(self, found: PlanAlternatives) -> None:
        with self._drawing:
            if [layer.name for layer in found.layers] == [self._selected]:
                self.figure.draw(figures.alternatives(found, dark=self._dark))
                self.shown.children = (self.figure,)

    def _on_failure(self, error: Exception) -> None:
        self.shown.children = ()
        self._panel.show_error(error)
        self._panel.reveal_error()

"""The layers of a plan as bars or on the graph of the model, with parts to open and a layer to click."""

import functools
import threading
from typing import Any

import ipywidgets
import plotly.graph_objects as go

from deeppool import figures
from deeppool.figures.module_groups import part_of_module
from deeppool.planning.plan import Plan
from deeppool.widgets.controls import LABEL
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.panel import Panel

VIEWS = {"bars": "bars", "graph, by GPUs": "gpus", "graph, by amplification": "amplification"}


class LayerFigure(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Part of a panel that has a trait ``selected``: the name of a layer, set by a click on it.

    In the graph of a deep model a click on a module shows its layers; buttons lead back to the whole.
    """

    def __init__(self, plan: Plan) -> None:
        """Draws a plan's layers as bars."""
        self.view = ipywidgets.ToggleButtons(
            description="layers as",
            tooltip="how the layers are drawn",
            options=VIEWS,
            style={**LABEL, "button_width": "auto"},
        )
        self.path = ipywidgets.HBox(layout={"flex_flow": "row wrap"})
        """Buttons of the modules that lead to the displayed part; empty while all layers are displayed."""
        self.figure = LiveFigure(figures.layers(plan))
        self._plan, self._selected, self._dark = plan, "", False
        self._parts: list[range] = []
        self._drawing = threading.RLock()
        super().__init__([self.view, self.path, self.figure])

    def connect(self, panel: Panel) -> None:
        """Lets clicks set the panel's ``selected``; errors appear in the panel."""
        self._panel: Any = panel
        self.view.observe(panel.guarded(lambda _: self._redraw()), "value")
        panel.on_width(lambda: None if self.view.value == "bars" else self._redraw())

    def draw(self, plan: Plan, selected: str, *, dark: bool) -> None:
        """Displays a plan, and marks a layer, if there is one of this name."""
        with self._drawing:
            self._plan, self._selected, self._dark = plan, selected, dark
            self._redraw()

    def open_part(self, part: range) -> None:
        """Displays only some consecutive layers in the graph."""
        self._parts = [*(outer for outer in self._parts if set(part) < set(outer)), part]
        self._redraw()

    def leave_part(self, depth: int) -> None:
        """Displays again what was displayed before the part at ``depth`` was opened."""
        self._parts = self._parts[:depth]
        self._redraw()

    def _redraw(self) -> None:
        with self._drawing:
            self._update_path()
            self.figure.draw(self._figure())
            # Again, since a redraw with other types of traces replaces them.
            self._panel.on_point_click(self.figure, self._on_click)

    def _figure(self) -> go.Figure:
        if self.view.value == "bars":
            return figures.layers(self._plan, selected=self._selected, dark=self._dark)
        part = self._parts[-1] if self._parts else None
        return figures.plan_graph(
            self._plan,
            part,
            colour_by=self.view.value,
            selected=self._selected,
            width=self._panel.page_width,
            dark=self._dark,
        )

    def _update_path(self) -> None:
        names = ["all layers", *map(self._name, self._parts)]
        panel, buttons = self._panel, []
        for depth, name in enumerate(names[:-1]):
            button = ipywidgets.Button(description=name, layout={"width": "auto"})
            panel.on_click(button, functools.partial(self.leave_part, depth))
            buttons.append(button)
        displayed = bool(self._parts) and self.view.value != "bars"
        if displayed != bool(self.path.children) or len(buttons) != len(self.path.children) - 1:
            self.path.children = (*buttons, ipywidgets.Label(names[-1])) if displayed else ()

    def _name(self, part: range) -> str:
        """Returns the module that a part is, or its first and its last layer."""
        first, last = (self._plan.layers[index].name for index in (part[0], part[-1]))
        module = ".".join(a for a, b in zip(first.split("."), last.split("."), strict=False) if a == b)
        whole = module and part_of_module([layer.name for layer in self._plan.layers], module) == part
        return module if whole else f"{first} … {last}"

    def _on_click(self, trace: Any, index: int) -> None:
        if self.view.value == "bars":
            self._panel.selected = self._plan.layers[int(trace.x[index])].name
            return
        first, end = trace.customdata[index][:2]
        if end - first > 1:
            self.open_part(range(first, end))
        else:
            self._panel.selected = self._plan.layers[first].name

"""What each GPU does when, with a window of time that keys and the mouse move."""

import html
import math
import os
from collections.abc import Callable
from pathlib import Path

import ipywidgets
import plotly.graph_objects as go

from deeppool import figures
from deeppool.base.timeline import SpanKind
from deeppool.figures import theme
from deeppool.figures.labels import time_unit
from deeppool.figures.timeline_rows import Source, TimelinePanel, panels_of
from deeppool.widgets.controls import LABEL, choice, grid
from deeppool.widgets.live_figure import become, turn
from deeppool.widgets.panel import Panel

ALL = -1
"""Timelines are chosen by position, or all of them."""
STEPS = 1000
"""Of the window's slider over the longest iteration."""
ZOOM = 2.0
"""By one press of a button."""
PAN = 0.5
"""Of the window's width, by one press."""
NARROWEST = 1 / STEPS
"""Window, of the longest iteration."""

Window = tuple[float, float]


class TimelineView(Panel):
    """The timelines of plans, simulations and runs on one axis of time, predicted above measured.

    A thousand GPUs share rows with those that do the same. The mouse zooms too; names appear where they fit.
    """

    def __init__(self, *sources: Source) -> None:
        """Shows whole iterations.

        Args:
            sources: as for ``deeppool.figures.timeline``.

        Raises:
            InvalidValueError: no source, or one that is none of these.
        """
        self._quiet = False
        self.panel = choice("timelines", {"none": ALL}, ALL)
        self.window = ipywidgets.FloatRangeSlider(
            continuous_update=True, readout_format=".4g", style=LABEL, layout=ipywidgets.Layout(width="auto")
        )
        self.buttons = {
            name: ipywidgets.Button(description=name, tooltip=tip, layout=_NARROW) for name, tip in _BUTTONS.items()
        }
        self.kinds: dict[SpanKind, ipywidgets.ToggleButton] = {}
        self._kinds = ipywidgets.HBox(layout=_ROW)
        self.file = ipywidgets.Text("timeline.json", description="file", style=LABEL)
        self.save = ipywidgets.Button(description="Export for Perfetto", layout=_NARROW)
        self.saved = ipywidgets.HTML()
        self._take(panels_of(*sources))
        # Whole when it is made: a page that is slow to begin with misses what is sent after that.
        self.figure = go.FigureWidget(figures.timeline(*self._panels))
        super().__init__(
            [
                grid(self.panel, self.window),
                ipywidgets.HBox([*self.buttons.values(), self._kinds], layout=_ROW),
                self.figure,
                ipywidgets.HBox([self.file, self.save]),
                self.saved,
            ]
        )
        self.panel.observe(self.guarded(self._redraw), "value")
        self.window.observe(self.guarded(self._redraw), "value")
        for name, button in self.buttons.items():
            button.on_click(self.guarded(self._mover(name)))
        self.save.on_click(self.guarded(lambda _: self.export()))
        # On the layout: its axes are exchanged when it is drawn again.
        self.figure.layout.on_change(self.guarded(self._follow_mouse), "xaxis.range")
        self.on_theme(self._draw)

    def look_at(self, *sources: Source) -> None:
        """Shows others in place of what is shown.

        Raises:
            InvalidValueError: no source, or one that is none of these.
        """
        panels = panels_of(*sources)
        with turn(self.figure):
            self._take(panels)
            self._draw()

    def export(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes the shown timelines, all kinds and all of the time, for https://ui.perfetto.dev.

        Args:
            path: of the file; the one in the panel unless given.

        Raises:
            DocumentError: the file cannot be written.
        """
        shown = [panel.timeline for panel in self._shown()]
        written = figures.write_trace(path or self.file.value, *shown).resolve()
        self.saved.value = (
            f'<span role="status">written: {html.escape(str(written))} (open it in ui.perfetto.dev)</span>'
        )
        return written

    def static(self) -> go.Figure:
        """What is shown now."""
        start, end = self._seconds()
        whole = end - start >= self._longest * (1 - 1 / STEPS)
        kinds = {kind for kind, button in self.kinds.items() if button.value}
        window = None if whole else (start, end)
        return figures.timeline(*self._shown(), window=window, kinds=kinds, dark=self.dark)

    def _take(self, panels: tuple[TimelinePanel, ...]) -> None:
        """Has the controls offer what these timelines have; nothing is drawn."""
        self._panels = panels
        self._longest = max(panel.duration for panel in panels) or 1.0
        self._unit = time_unit(self._longest)
        whole = self._unit.of(self._longest)
        self._quiet = True
        try:
            self.panel.options = _choices(panels)
            self._offer_kinds()
            self.window.description = f"window ({self._unit.name})"
            # Wide first: a bound must not pass the value.
            self.window.max = max(whole, self.window.max)
            self.window.value = (0.0, whole)
            self.window.max, self.window.step = whole, whole / STEPS
        finally:
            self._quiet = False

    # -- the window ---------------------------------------------------------------------------------

    def _seconds(self) -> Window:
        start, end = (self._unit.seconds * bound for bound in self.window.value)
        return _within((start, end), self._longest)

    def _mover(self, name: str) -> Callable[[object], None]:
        def move(_: object) -> None:
            self._set(_MOVES[name](*self._seconds()))

        return move

    def _set(self, window: Window) -> None:
        start, end = _within(window, self._longest)
        self.window.value = (self._unit.of(start), self._unit.of(end))

    def _follow_mouse(self, _: object, range_: tuple[float, float] | None) -> None:
        with turn(self.figure):
            if not self._quiet and range_ is not None:
                self._set((self._unit.seconds * range_[0], self._unit.seconds * range_[1]))

    # -- what is shown ------------------------------------------------------------------------------

    def _shown(self) -> tuple[TimelinePanel, ...]:
        return self._panels if self.panel.value == ALL else (self._panels[self.panel.value],)

    def _offer_kinds(self) -> None:
        present = {span.kind for panel in self._panels for row in panel.rows for span in row.spans}
        self.kinds = {
            kind: ipywidgets.ToggleButton(True, description=kind, layout=_NARROW)
            for kind in theme.KINDS
            if kind in present
        }
        for button in self.kinds.values():
            button.observe(self.guarded(self._redraw), "value")
        self._kinds.children = (ipywidgets.Label("show"), *self.kinds.values())

    def _redraw(self, _: object) -> None:
        # Quiet in this thread: what another one draws at the moment may not know of this control.
        with turn(self.figure):
            if not self._quiet:
                self._draw()

    def _draw(self) -> None:
        with turn(self.figure):
            # What we draw ourselves is no move of the mouse.
            self._quiet = True
            try:
                become(self.figure, self.static())
            finally:
                self._quiet = False


_NARROW, _ROW = ipywidgets.Layout(width="auto"), ipywidgets.Layout(flex_flow="row wrap")
_BUTTONS = {
    "Narrower": "half the window",
    "Wider": "twice the window",
    "Earlier": "half a window back",
    "Later": "half a window on",
    "Whole": "the whole iteration",
}
"""Name → what it does; not Zoom in and Zoom out, as plotly calls two of its own."""
_MOVES: dict[str, Callable[[float, float], Window]] = {
    "Narrower": lambda start, end: _scaled(start, end, 1 / ZOOM),
    "Wider": lambda start, end: _scaled(start, end, ZOOM),
    "Earlier": lambda start, end: (start - PAN * (end - start), end - PAN * (end - start)),
    "Later": lambda start, end: (start + PAN * (end - start), end + PAN * (end - start)),
    "Whole": lambda start, end: (0.0, math.inf),
}


def _scaled(start: float, end: float, factor: float) -> Window:
    middle, half = (start + end) / 2, factor * (end - start) / 2
    return middle - half, middle + half


def _within(window: Window, longest: float) -> Window:
    """The window moved, and cut where it must be, to lie in an iteration."""
    start, end = window
    width = min(max(end - start, NARROWEST * longest), longest)
    start = min(max(start, 0.0), longest - width)
    return start, start + width


def _choices(panels: tuple[TimelinePanel, ...]) -> list[tuple[str, int]]:
    """Text → position; all of them first."""
    every = "all, one below the other" if len(panels) > 1 else f"{panels[0].provenance}: {panels[0].title}"
    each = [(f"{panel.provenance}: {panel.title}", index) for index, panel in enumerate(panels)]
    return [(every, ALL), *(each if len(panels) > 1 else [])]

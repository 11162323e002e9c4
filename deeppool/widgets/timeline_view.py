"""Timelines of GPU activity with a time window controlled by keyboard and mouse, and a layer to find in them."""

import functools
import html
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets
import plotly.graph_objects as go
import traitlets

from deeppool import figures
from deeppool.base.timeline import Span, SpanKind
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, time_unit
from deeppool.figures.timeline import Window
from deeppool.figures.timeline_rows import Source, TimelinePanel, panels_of
from deeppool.widgets.controls import LABEL, choice, grid
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.panel import Panel

ALL = -1
"""Value of the timeline list that selects all timelines."""
STEPS = 1000
"""Steps of the window slider over the longest iteration."""
ZOOM = 2.0
"""Zoom factor of one button press."""
PAN = 0.5
"""Fraction of the window's width that one button press pans by."""
FOUND = 12
"""Width of the window around a layer that is found, in widths of its span."""
NARROWEST = 1 / STEPS
"""Smallest window as a fraction of the longest iteration."""


class TimelineView(Panel):
    """Shows timelines of plans, simulations and runs, predicted above measured, on one time axis or each on its own.

    GPUs with identical activity share a row. The mouse zooms, too; names are displayed where they fit.
    """

    record: Any = traitlets.Any(None)
    """A plan, simulation or run that takes the place of what is shown, to link to that of another panel."""
    selected: Any = traitlets.Unicode()
    """Name of a layer whose spans are outlined, with the window at its forward pass; empty: none. To link to that of
    another panel."""

    def __init__(self, *sources: Source) -> None:
        """Shows the whole iteration of each source.

        Args:
            sources: as for ``deeppool.figures.timeline``.

        Raises:
            InvalidValueError: no source, or one of an unsupported type.
        """
        self._updating = False
        self.panel = choice("timelines", {"none": ALL}, ALL)
        self.axis = choice("time axis", {"one for all": False, "percent of each iteration": True}, False)
        """Iterations of unlike lengths are compared in percent."""
        self.window = ipywidgets.FloatRangeSlider(
            tooltip="part of the iteration that is shown",
            continuous_update=True,
            readout_format=".4",
            style=LABEL,
            layout=ipywidgets.Layout(width="auto"),
        )
        self.buttons = {
            name: ipywidgets.Button(description=name, tooltip=tip, layout=_NARROW) for name, tip in _BUTTONS.items()
        }
        self.kinds: dict[SpanKind, ipywidgets.ToggleButton] = {}
        self._kinds = ipywidgets.HBox(layout=_ROW)
        self.file = ipywidgets.Text("timeline.json", description="file", style=LABEL)
        self.save = ipywidgets.Button(description="Export for Perfetto", layout=_NARROW)
        self.save_status = ipywidgets.HTML()
        self._set_panels(panels_of(*sources))
        # Complete when constructed: a page that loads slowly misses later messages.
        self.figure = LiveFigure(figures.timeline(*self._panels))
        super().__init__(
            [
                grid(self.panel, self.axis, self.window),
                ipywidgets.HBox([*self.buttons.values(), self._kinds], layout=_ROW),
                self.figure,
                ipywidgets.HBox([self.file, self.save]),
                self.save_status,
            ]
        )
        self.panel.observe(self.guarded(self._redraw), "value")
        self.window.observe(self.guarded(self._redraw), "value")
        self.axis.observe(self.guarded(self._change_axis), "value")
        for name, button in self.buttons.items():
            self.on_click(button, functools.partial(self._move, name))
        self.on_click(self.save, self.export)
        self.observe(self.guarded(lambda change: self.set_sources(change["new"])), "record")
        self.observe(self.guarded(lambda _: self._find_selected()), "selected")
        # On the layout, because a redraw replaces its axes.
        self.figure.layout.on_change(self.guarded(self._on_zoom), "xaxis.range")
        self.on_theme(self._draw)

    def set_sources(self, *sources: Source) -> None:
        """Replaces the displayed sources.

        Raises:
            InvalidValueError: no source, or one of an unsupported type.
        """
        panels = panels_of(*sources)
        with self.figure.turn:
            self._set_panels(panels)
            self._draw()

    def export(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes the selected timelines, unfiltered and in full length, for https://ui.perfetto.dev.

        Args:
            path: file to write; by default the one named in the panel.

        Raises:
            DocumentError: the file cannot be written.
        """
        shown = [panel.timeline for panel in self._shown()]
        written = figures.write_trace(path or self.file.value, *shown).resolve()
        self.save_status.value = (
            f'<span role="status">written: {html.escape(str(written))} (open it in ui.perfetto.dev)</span>'
        )
        return written

    def static(self) -> go.Figure:
        """Returns the displayed figure."""
        start, end = self._seconds()
        whole = end - start >= self._longest * (1 - 1 / STEPS)
        kinds = {kind for kind, button in self.kinds.items() if button.value}
        window = None if whole else (start, end)
        return figures.timeline(
            *self._shown(),
            window=window,
            kinds=kinds,
            relative=self.axis.value,
            selected=self.selected or None,
            dark=self.dark,
        )

    def _set_panels(self, panels: tuple[TimelinePanel, ...]) -> None:
        """Sets the controls to the given timelines, without drawing."""
        self._panels = panels
        self._updating = True
        try:
            self.panel.options = _choices(panels)
            self._make_kind_buttons()
            self._set_whole_window()
        finally:
            self._updating = False

    def _set_whole_window(self) -> None:
        """Sets the slider to the whole iteration, in the unit of the axis."""
        self._longest = 1.0 if self.axis.value else max(panel.duration for panel in self._panels) or 1.0
        self._unit = TimeUnit("%", 0.01) if self.axis.value else time_unit(self._longest)
        whole = self._unit.of(self._longest)
        self.window.description = f"window ({self._unit.name})"
        # The maximum first: it must not fall below the value.
        self.window.max = max(whole, self.window.max)
        self.window.value = (0.0, whole)
        self.window.max, self.window.step = whole, whole / STEPS

    # -- the window ---------------------------------------------------------------------------------

    def _seconds(self) -> Window:
        start, end = (self._unit.seconds * bound for bound in self.window.value)
        return _within((start, end), self._longest)

    def _move(self, name: str) -> None:
        self._set(_MOVES[name](*self._seconds()))

    def _set(self, window: Window) -> None:
        start, end = _within(window, self._longest)
        self.window.value = (self._unit.of(start), self._unit.of(end))

    def _on_zoom(self, _: object, range_: tuple[float, float] | None) -> None:
        with self.figure.turn:
            if not self._updating and range_ is not None:
                self._set((self._unit.seconds * range_[0], self._unit.seconds * range_[1]))

    def _find_selected(self) -> None:
        """Moves the window to the selected layer's first span.

        Raises:
            InvalidValueError: no displayed timeline has one, as of a run whose stages are several layers.
        """
        with self.figure.turn:
            if self.selected:
                panel, span = _first_span(self._shown(), self.selected)
                whole = panel.duration or 1.0 if self.axis.value else 1.0
                width = FOUND * span.duration / whole
                middle = (span.start + span.end) / 2 / whole
                self._set((middle - width / 2, middle + width / 2))
            self._draw()

    # -- what is shown ------------------------------------------------------------------------------

    def _shown(self) -> tuple[TimelinePanel, ...]:
        return self._panels if self.panel.value == ALL else (self._panels[self.panel.value],)

    def _make_kind_buttons(self) -> None:
        present = {span.kind for panel in self._panels for row in panel.rows for span in row.spans}
        self.kinds = {
            kind: ipywidgets.ToggleButton(True, description=kind, layout=_NARROW)
            for kind in theme.KINDS
            if kind in present
        }
        for button in self.kinds.values():
            button.observe(self.guarded(self._redraw), "value")
        self._kinds.children = (ipywidgets.Label("show"), *self.kinds.values())

    def _change_axis(self, _: object) -> None:
        with self.figure.turn:
            self._updating = True
            try:
                self._set_whole_window()
            finally:
                self._updating = False
            self._draw()

    def _redraw(self, _: object) -> None:
        # Checked under the lock: another thread may be drawing without this control's new value.
        with self.figure.turn:
            if not self._updating:
                self._draw()

    def _draw(self) -> None:
        with self.figure.turn:
            # Our own drawing must not count as a zoom by mouse.
            self._updating = True
            try:
                self.figure.draw(self.static())
            finally:
                self._updating = False


_NARROW, _ROW = {"width": "auto"}, {"flex_flow": "row wrap"}
_BUTTONS = {
    "Narrower": "half the window",
    "Wider": "twice the window",
    "Earlier": "half a window back",
    "Later": "half a window on",
    "Whole": "the whole iteration",
}
"""Name → tooltip; not Zoom in and Zoom out, which are plotly's own buttons."""
_MOVES: dict[str, Callable[[float, float], Window]] = {
    "Narrower": lambda start, end: _scaled(start, end, 1 / ZOOM),
    "Wider": lambda start, end: _scaled(start, end, ZOOM),
    "Earlier": lambda start, end: (start - PAN * (end - start), end - PAN * (end - start)),
    "Later": lambda start, end: (start + PAN * (end - start), end + PAN * (end - start)),
    "Whole": lambda start, end: (0.0, math.inf),
}


def _first_span(panels: tuple[TimelinePanel, ...], layer: str) -> tuple[TimelinePanel, Span]:
    for panel in panels:
        found = [span for row in panel.rows for span in row.spans if span.name == layer]
        if found:
            # Its forward pass, rather than the transfer before it.
            return panel, min(found, key=lambda span: (span.kind != "forward", span.start))
    raise InvalidValueError(
        f"no displayed timeline has a span of layer '{layer}' (a measured one shows stages of several layers)"
    )


def _scaled(start: float, end: float, factor: float) -> Window:
    middle, half = (start + end) / 2, factor * (end - start) / 2
    return middle - half, middle + half


def _within(window: Window, longest: float) -> Window:
    """Returns the window shifted, and shortened if necessary, to lie within the iteration."""
    start, end = window
    width = min(max(end - start, NARROWEST * longest), longest)
    start = min(max(start, 0.0), longest - width)
    return start, start + width


def _choices(panels: tuple[TimelinePanel, ...]) -> list[tuple[str, int]]:
    """Returns (text, position) of each entry of the timeline list; all timelines first."""
    every = "all, one below the other" if len(panels) > 1 else f"{panels[0].provenance}: {panels[0].title}"
    each = [(f"{panel.provenance}: {panel.title}", index) for index, panel in enumerate(panels)]
    return [(every, ALL), *(each if len(panels) > 1 else [])]

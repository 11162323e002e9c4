"""A displayed figure that is updated in place, follows the page's width and survives a page reload.

By default plotly's figure is 700 pixels wide, and a page that is reloaded while the kernel runs gets the figure as
it was constructed, followed by updates of traces that the page does not have. Its toolbar also has a button
that uploads the figure to a cloud, which is removed. And plotly sends its library with each figure, which then takes so
long to start on a slow machine that anywidget gives it up; here all figures share one (see ``plotly_library``).

JupyterLab handles messages of a page in the kernel's main thread and in a subshell thread at the same time. While one
thread handles a message for a figure, traitlets keeps only the last value that another one sets, and plotly sets and
resets the traits that carry its commands to the page: updates would be lost. Drawing and message handling therefore
both take the figure's :attr:`LiveFigure.turn`.
"""

import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np
import plotly.graph_objects as go
import traitlets
from plotly.basedatatypes import BasePlotlyType

from deeppool.figures.page_width import page_layout
from deeppool.widgets.plotly_library import PlotlyLibrary

OF_THE_PAGE = frozenset({"uid", "type", "autosize"})
"""Properties that a page sets; without ``autosize`` a figure would not follow the width of its panel."""

FADED = 0.25
"""Opacity of what belongs to earlier values of the controls."""


class LiveFigure(go.FigureWidget):  # type: ignore[misc]  # plotly has no types
    """A figure of a panel."""

    _esm = Path(__file__).parent / "live_figure.js"

    data: Any
    _config: Any

    outdated = False
    """Whether it belongs to earlier values, also after the next :meth:`draw`, which then leaves it faded."""

    _library: Any = traitlets.Instance(PlotlyLibrary).tag(sync=True, **ipywidgets.widget_serialization)

    @traitlets.default("_library")
    def _share_library(self) -> PlotlyLibrary:
        return PlotlyLibrary.of_this_kernel()

    def __init__(self, figure: go.Figure | None = None) -> None:
        """Shows what a figure shows; None: nothing yet."""
        self._turn = threading.RLock()
        self._page_width: int | None = None
        super().__init__(figure)
        self._config = {**self._config, "responsive": True, "showSendToCloud": False}

    @property
    def turn(self) -> threading.RLock:
        """Lock that drawing and message handling share."""
        return self._turn

    def draw(self, figure: go.Figure) -> None:
        """Makes the figure equal to another one with one message to the page.

        If the trace types and their order are the same, only the differences are sent.
        """
        with self.turn:
            if self._page_width is not None:
                figure.update_layout(page_layout(figure, self._page_width) or {})
            if self.outdated:
                figure.update_traces(opacity=FADED)
            same = [trace.type for trace in self.data] == [trace.type for trace in figure.data]
            with self.batch_update():
                if same:
                    for old, new in zip(self.data, figure.data, strict=True):
                        _overwrite(old, new)
                _overwrite(self.layout, figure.layout)
            if not same:
                self.data = []
                self.add_traces(figure.data)

    def draw_trace(self, trace: BasePlotlyType) -> None:
        """Replaces the trace that has the same name."""
        with self.turn, self.batch_update():
            (old,) = (one for one in self.data if one.name == trace.name)
            _overwrite(old, trace)

    def fade(self) -> None:
        """Shows that the figure belongs to earlier values; :meth:`draw` ends that unless it is :attr:`outdated`."""
        with self.turn, self.batch_update():
            for trace in self.data:
                trace.opacity = FADED

    def fit(self, width: int) -> None:
        """Fits the texts, now and whenever it is drawn, to the width of its panel in pixels."""
        with self.turn:
            self._page_width = width
            fitted = page_layout(self, width)
            if fitted is not None:
                with self.batch_update():
                    self.update_layout(fitted)

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> Any:
        """Returns what a page is told; a new page requests the whole state, with no key."""
        with self.turn:
            # The first page is told before there is anything to show.
            if key is None and hasattr(self, "_layout_obj"):
                # As FigureWidget._repr_mimebundle_ does where a figure is shown by itself.
                self._widget_layout = deepcopy(self._layout_obj._props)
                self._widget_data = deepcopy(self._data)
            return super().get_state(key, drop_defaults)

    def set_state(self, sync_data: Any) -> None:
        """Handles an update from the page.

        What the page's traces hold after an update is ignored. Plotly would use it for defaults that nobody reads here,
        but a page that is behind reports the data of an earlier update, and plotly replaces the figure's data by it, or
        raises a ValueError for an array.
        """
        with self.turn:
            super().set_state({name: value for name, value in sync_data.items() if name != "_js2py_traceDeltas"})


def _overwrite(old: BasePlotlyType, new: BasePlotlyType) -> None:
    wanted = new.to_plotly_json()
    for name, before in old.to_plotly_json().items():
        # A page's own additions (a trace's id, the range of an axis that has none) come back as differences.
        if name not in wanted and name not in OF_THE_PAGE:
            wanted[name] = None
        elif name in wanted and _equal(before, wanted[name]):
            del wanted[name]
    for name, value in wanted.items():
        if name not in OF_THE_PAGE:
            old[name] = value


def _equal(a: Any, b: Any) -> bool:
    """Whether two properties are equal; numpy arrays compare by element."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple | np.ndarray) or isinstance(b, list | tuple | np.ndarray):
        return np.array_equal(np.asarray(a, dtype=object), np.asarray(b, dtype=object))
    return bool(a == b)

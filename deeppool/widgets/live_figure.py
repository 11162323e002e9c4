"""In-place updates of a displayed figure that follows the page's width and survives a page reload.

JupyterLab handles messages of a page in the kernel's main thread and in a subshell thread at the same time. While one
thread handles a message for a figure, traitlets keeps only the last value that another one sets, and plotly sets and
resets the traits that carry its commands to the page: updates would be lost. Drawing and message handling therefore
both take the figure's :func:`figure_lock`.
"""

import functools
import threading
from copy import deepcopy
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.basedatatypes import BasePlotlyType

from deeppool.figures.page_width import page_layout

OF_THE_PAGE = frozenset({"uid", "type", "autosize"})
"""Properties that a page sets; without ``autosize`` a figure would not follow the width of its panel."""

FADED = 0.25
"""Opacity of what belongs to earlier values of the controls."""


def update_figure(shown: go.FigureWidget, figure: go.Figure) -> None:
    """Makes a displayed figure equal to another one with one message to the page.

    If the trace types and their order are the same, only the differences are sent.
    """
    with figure_lock(shown):
        width = shown.__dict__.get("_page_width")
        if width is not None:
            figure.update_layout(page_layout(figure, width) or {})
        same = [trace.type for trace in shown.data] == [trace.type for trace in figure.data]
        with shown.batch_update():
            if same:
                for old, new in zip(shown.data, figure.data, strict=True):
                    _overwrite(old, new)
            _overwrite(shown.layout, figure.layout)
        if not same:
            shown.data = []
            shown.add_traces(figure.data)


def update_trace(shown: go.FigureWidget, trace: BasePlotlyType) -> None:
    """Replaces the trace of a displayed figure that has the same name."""
    with figure_lock(shown), shown.batch_update():
        (old,) = (one for one in shown.data if one.name == trace.name)
        _overwrite(old, trace)


def fade_figure(shown: go.FigureWidget) -> None:
    """Shows that a figure belongs to earlier values; an update of the whole figure ends that."""
    with figure_lock(shown), shown.batch_update():
        for trace in shown.data:
            trace.opacity = FADED


def fit_figure(shown: go.FigureWidget, width: int) -> None:
    """Fits the texts of a displayed figure, now and whenever it is updated, to the width of its panel in pixels."""
    with figure_lock(shown):
        shown.__dict__["_page_width"] = width
        fitted = page_layout(shown, width)
        if fitted is not None:
            with shown.batch_update():
                shown.update_layout(fitted)


def figure_lock(shown: go.FigureWidget) -> threading.RLock:
    """Returns the lock of a figure, which drawing and message handling share."""
    lock: threading.RLock = shown.__dict__.setdefault("_turn", threading.RLock())
    return lock


def prepare_figure(shown: go.FigureWidget) -> None:
    """Makes a figure responsive, complete on a reloaded page, and safe to update from several threads.

    By default plotly's figure is 700 pixels wide, and a page that is reloaded while the kernel runs gets the figure as
    it was constructed, followed by updates of traces that the page does not have. Its toolbar also has a button
    that uploads the figure to a cloud, which is removed.
    """
    shown._config = {**shown._config, "responsive": True, "showSendToCloud": False}
    if not isinstance(shown.get_state, functools.partial):
        shown.get_state = functools.partial(_get_state, shown, shown.get_state)
        shown.set_state = functools.partial(_set_state, shown, shown.set_state)


def _get_state(shown: go.FigureWidget, get_state: Any, key: Any = None, drop_defaults: bool = False) -> Any:
    """Wraps :meth:`ipywidgets.Widget.get_state`; a new page requests the whole state, with no key."""
    with figure_lock(shown):
        if key is None:
            # As FigureWidget._repr_mimebundle_ does where a figure is shown by itself.
            shown._widget_layout = deepcopy(shown._layout_obj._props)
            shown._widget_data = deepcopy(shown._data)
        return get_state(key, drop_defaults)


def _set_state(shown: go.FigureWidget, set_state: Any, update: Any) -> None:
    """Wraps :meth:`ipywidgets.Widget.set_state`, which handles an update from the page.

    What the page's traces hold after an update is ignored. Plotly would use it for defaults that nobody reads here, but
    a page that is behind reports the data of an earlier update, and plotly replaces the figure's data by it, or raises
    a ValueError for an array.
    """
    with figure_lock(shown):
        set_state({name: value for name, value in update.items() if name != "_js2py_traceDeltas"})


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

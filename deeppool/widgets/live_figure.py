"""A figure in a notebook that becomes another one in place, follows the page's width, and survives the page.

JupyterLab has some of a page's messages handled in the kernel's main thread and some in another one, a subshell, at
once. While one thread takes a message for a figure, traitlets keeps only the last of what another one sets, and
plotly's orders to the page are set and reset: they would be lost. So whoever draws, or takes a message, has the
figure's :func:`turn` first.
"""

import functools
import threading
from copy import deepcopy
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.basedatatypes import BasePlotlyType


def become(shown: go.FigureWidget, figure: go.Figure) -> None:
    """Makes a shown figure equal another one, by one message to the page.

    Where the traces are of the same types in the same order, only what differs in them travels.
    """
    with turn(shown):
        same = [trace.type for trace in shown.data] == [trace.type for trace in figure.data]
        with shown.batch_update():
            if same:
                for old, new in zip(shown.data, figure.data, strict=True):
                    _overwrite(old, new)
            _overwrite(shown.layout, figure.layout)
        if not same:
            shown.data = []
            shown.add_traces(figure.data)


def move(shown: go.FigureWidget, trace: BasePlotlyType) -> None:
    """Makes the one trace of a shown figure that has the name of another trace equal to it."""
    with turn(shown), shown.batch_update():
        (old,) = (one for one in shown.data if one.name == trace.name)
        _overwrite(old, trace)


def turn(shown: go.FigureWidget) -> threading.RLock:
    """Whose turn it is with a figure; the same for every call."""
    lock: threading.RLock = shown.__dict__.setdefault("_turn", threading.RLock())
    return lock


def settle(shown: go.FigureWidget) -> None:
    """Has a figure follow the width of the page, be whole on a page that is opened again, and hear it in turn.

    Without it plotly's is 700 pixels wide whatever there is, and a page that is opened while the kernel lives gets the
    figure as it was made, and then news of traces that it has never heard of.
    """
    shown._config = {**shown._config, "responsive": True}
    if not isinstance(shown.get_state, functools.partial):
        shown.get_state = functools.partial(_state, shown, shown.get_state)
        shown.set_state = functools.partial(_hear, shown, shown.set_state)


def _state(shown: go.FigureWidget, get_state: Any, key: Any = None, drop_defaults: bool = False) -> Any:
    """As :meth:`ipywidgets.Widget.get_state`: a new page asks for all of it, by no key."""
    with turn(shown):
        if key is None:
            # As FigureWidget._repr_mimebundle_ does where a figure is shown by itself.
            shown._widget_layout = deepcopy(shown._layout_obj._props)
            shown._widget_data = deepcopy(shown._data)
        return get_state(key, drop_defaults)


def _hear(shown: go.FigureWidget, set_state: Any, told: Any) -> None:
    """As :meth:`ipywidgets.Widget.set_state`: the page tells something."""
    with turn(shown):
        set_state(told)


def _overwrite(old: BasePlotlyType, new: BasePlotlyType) -> None:
    wanted = new.to_plotly_json()
    for name, before in old.to_plotly_json().items():
        # A page's own additions (a trace's id, the range of an axis that has none) come back as differences.
        if name not in wanted and name not in ("uid", "type"):
            wanted[name] = None
        elif name in wanted and _equal(before, wanted[name]):
            del wanted[name]
    for name, value in wanted.items():
        if name not in ("uid", "type"):
            old[name] = value


def _equal(a: Any, b: Any) -> bool:
    """Whether two properties are; arrays of numpy compare by element."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple | np.ndarray) or isinstance(b, list | tuple | np.ndarray):
        return np.array_equal(np.asarray(a, dtype=object), np.asarray(b, dtype=object))
    return bool(a == b)

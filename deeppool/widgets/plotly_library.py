"""Plotly's JavaScript, sent to a page once for all its figures; plotly sends its five megabytes with each of them."""

import threading
from typing import Any

import anywidget
import plotly
import traitlets
from plotly.graph_objects import FigureWidget

_turn = threading.Lock()


class PlotlyLibrary(anywidget.AnyWidget):
    """A widget that is never displayed: it holds what a :class:`deeppool.widgets.live_figure.LiveFigure` runs."""

    _esm = "export default {};"

    version: Any = traitlets.Unicode(plotly.__version__).tag(sync=True)
    source: Any = traitlets.Bytes().tag(sync=True)
    """Text of the module, in UTF-8."""

    _shared: "PlotlyLibrary | None" = None

    @classmethod
    def of_this_kernel(cls) -> "PlotlyLibrary":
        """Returns the one of this process; another one after it was closed, as ``Widget.close_all()`` does."""
        with _turn:
            if cls._shared is None or cls._shared.comm is None:
                cls._shared = cls(source=str(FigureWidget._esm).encode())
            return cls._shared

"""A displayed figure whose page loads Plotly once."""

from pathlib import Path

import ipywidgets
import plotly
import plotly.graph_objects as go
import traitlets


class PlotlyLibrary(ipywidgets.Widget):  # type: ignore[misc]  # ipywidgets has no types
    """Plotly as a module for pages: 5 MB, which plotly's own figures bring each, to be parsed anew."""

    source = traitlets.Unicode().tag(sync=True)
    version = traitlets.Unicode(plotly.__version__).tag(sync=True)


class PageFigure(go.FigureWidget):  # type: ignore[misc]  # plotly has no types
    """Figure of plotly that takes the module from a widget that all figures of this process share."""

    _esm = Path(__file__).parent / "page_figure.js"
    library = traitlets.Instance(PlotlyLibrary).tag(sync=True, **ipywidgets.widget_serialization)

    _library: PlotlyLibrary | None = None

    @traitlets.default("library")
    def _shared_library(self) -> PlotlyLibrary:
        # Widget.close_all() ends it, too.
        if PageFigure._library is None or PageFigure._library.comm is None:
            PageFigure._library = PlotlyLibrary(source=str(go.FigureWidget._esm))
        return PageFigure._library

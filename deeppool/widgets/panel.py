"""What every widget of deeppool is: controls, a place for their errors, and figures that follow the page's theme."""

import functools
import html
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec

import ipywidgets
import plotly.graph_objects as go

from deeppool.errors import DeeppoolError
from deeppool.widgets.live_figure import settle
from deeppool.widgets.page import Page

Parameters = ParamSpec("Parameters")

STATIC = "DEEPPOOL_STATIC"
"""Environment variable: nobody is there to move a control, so a panel shows itself as a static figure."""


class Panel(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """A widget of deeppool. In a notebook it shows itself; ``deeppool.widgets`` lists all of them.

    A panel's class in the page, by which tests and style sheets find it, is ``dp-`` and its name in kebab case.
    What goes wrong in a control's callback is shown under the controls and stays until one succeeds.
    """

    def __init__(self, contents: Sequence[ipywidgets.Widget], **options: Any) -> None:
        """Lays out the contents, one below the other, and the place for errors below them.

        Args:
            contents: may be exchanged later by :meth:`show`.
            options: of the VBox.
        """
        self._page = Page()
        for figure in _figures(contents):
            settle(figure)
        self._problem = ipywidgets.HTML()
        self._problem.add_class("dp-problem")
        self._told = 0
        super().__init__([*contents, self._problem, self._page], **options)
        self.add_class("dp-panel")
        self.add_class("dp-" + _kebab(type(self).__name__))

    def show(self, *contents: ipywidgets.Widget) -> None:
        """Exchanges the contents."""
        for figure in _figures(contents):
            settle(figure)
        self.children = (*contents, self._problem, self._page)

    @property
    def dark(self) -> bool:
        """Whether the page is."""
        return bool(self._page.dark)

    @dark.setter
    def dark(self, dark: bool) -> None:
        self._page.dark = dark

    def on_theme(self, draw: Callable[[], None]) -> None:
        """Has a function draw again when the page turns dark or light."""
        self._page.observe(lambda _: self.guarded(draw)(), "dark")

    def guarded(self, callback: Callable[Parameters, object]) -> Callable[Parameters, None]:
        """A callback whose errors are seen: a front end shows none of those that a widget's event raises."""

        @functools.wraps(callback)
        def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
            told = self._told
            try:
                callback(*arguments, **options)
            except Exception as error:  # whatever it is, the user is to see it
                self.tell_problem(error)
            else:
                # What a run's own thread has told since, of a run that the callback started, stays.
                if self._told == told:
                    self._problem.value = ""

        return run

    def tell_problem(self, error: BaseException) -> None:
        """Shows an error under the controls; one that is not ours with its type, since it is a defect."""
        self._told += 1
        told = str(error) if isinstance(error, DeeppoolError) else f"{type(error).__name__}: {error}"
        self._problem.value = f'<div role="alert" style="color: var(--jp-error-color1, #b00)">{html.escape(told)}</div>'

    @property
    def problem(self) -> str:
        """The error that is shown, as HTML; empty when there is none."""
        return str(self._problem.value)

    def static(self) -> go.Figure | None:
        """What the panel shows now, as a figure for a page without a kernel; None where there is nothing to draw."""
        return None

    def _ipython_display_(self) -> None:
        """Its figure, where nobody is there to use the widget."""
        figure = self.static() if os.environ.get(STATIC) else None
        if figure is None:
            # IPython then asks for the bundle; one that it got and that is empty would make it write out all traits.
            raise NotImplementedError
        # As plotly shows a figure at the end of a cell, by the renderer that was chosen.
        figure._ipython_display_()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget."""
        if os.environ.get(STATIC):
            return {"text/plain": f"({type(self).__name__}: open the notebook to use it)"}
        return super()._repr_mimebundle_(**options)


def _figures(widgets: Sequence[ipywidgets.Widget]) -> Iterator[go.FigureWidget]:
    """Those among widgets, and in them."""
    for widget in widgets:
        if isinstance(widget, go.FigureWidget):
            yield widget
        yield from _figures(getattr(widget, "children", ()))


def _kebab(name: str) -> str:
    return "".join("-" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("-")

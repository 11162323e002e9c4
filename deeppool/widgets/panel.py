"""Base class of all widgets: controls, an error message below them, and figures that follow the page's theme."""

import functools
import html
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec

import ipywidgets
import plotly.graph_objects as go

from deeppool.errors import DeeppoolError
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.page import Page

Parameters = ParamSpec("Parameters")

STATIC = "DEEPPOOL_STATIC"
"""Environment variable: if set, panels render as static figures, for notebooks executed without a user."""


class Panel(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Base class of deeppool's widgets, displayed at the end of a notebook cell.

    Its CSS class, for tests and style sheets, is ``dp-`` and the class name in kebab case. An error in a control's
    callback is displayed below the controls until one of a control succeeds.
    """

    def __init__(
        self, contents: Sequence[ipywidgets.Widget], *, error_after: ipywidgets.Widget | None = None, **options: Any
    ) -> None:
        """Lays out the contents in a column, with the error message.

        Args:
            contents: child widgets; :meth:`show` replaces them.
            error_after: one of them, below which errors are displayed; None: below all of them.
            options: passed to the VBox.
        """
        self._page = Page()
        self._page.observe(lambda _: self._reported(self._fit)(), "width")
        self._error_box = ipywidgets.HTML()
        self._error_box.add_class("dp-problem")
        self._error_count = 0
        place = len(contents) if error_after is None else list(contents).index(error_after) + 1
        super().__init__([*contents[:place], self._error_box, *contents[place:], self._page], **options)
        self.add_class("dp-panel")
        self.add_class("dp-" + _kebab(type(self).__name__))

    def show(self, *contents: ipywidgets.Widget) -> None:
        """Replaces the contents."""
        self.children = (*contents, self._error_box, self._page)
        self._fit()

    def _fit(self) -> None:
        """Fits the texts of all figures to the panel's width, also of those that are not displayed now."""
        if self._page.width:
            kept = [value for value in vars(self).values() if isinstance(value, LiveFigure)]
            for figure in {id(each): each for each in [*_figures(self.children), *kept]}.values():
                figure.fit(self._page.width)

    @property
    def dark(self) -> bool:
        """Whether the page has a dark theme."""
        return bool(self._page.dark)

    @dark.setter
    def dark(self, dark: bool) -> None:
        self._page.dark = dark

    def on_theme(self, draw: Callable[[], None]) -> None:
        """Registers a function that redraws when the page changes between dark and light."""
        self._page.observe(lambda _: self._reported(draw)(), "dark")

    @property
    def page_width(self) -> int | None:
        """Pixels that a figure of the panel may use; None before the panel is displayed."""
        return int(self._page.width) or None

    def on_width(self, draw: Callable[[], None]) -> None:
        """Registers a function that redraws when the width of the panel changes."""
        self._page.observe(lambda _: self._reported(draw)(), "width")

    def on_click(self, button: ipywidgets.Button, callback: Callable[[], object]) -> None:
        """Registers a guarded callback of a button; the page says so if the kernel does not handle a click."""
        guarded = self.guarded(callback)

        def handle(_: ipywidgets.Button) -> None:
            self._page.acknowledge_click()
            guarded()

        button.add_class("dp-click")
        button.on_click(handle)

    def copy(self, text: str) -> None:
        """Copies a text to the clipboard of the page, which says whether it could."""
        self._page.copy(text)

    def on_point_click(self, figure: LiveFigure, callback: Callable[[Any, int], object]) -> None:
        """Registers a guarded callback of a click on a point: its trace and its index. A redraw may drop it."""

        def handle(trace: Any, points: Any, _: object) -> None:
            # plotly calls it for every trace.
            for index in points.point_inds[:1]:
                callback(trace, index)

        for trace in figure.data:
            trace.on_click(self.guarded(handle))

    def guarded(self, callback: Callable[Parameters, object]) -> Callable[Parameters, None]:
        """Wraps a control's callback: its errors are displayed, as front ends hide them, and its success clears one.

        The page scrolls to an error, which may be far above the control.
        """
        reported = self._reported(callback)

        @functools.wraps(callback)
        def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
            before = self._error_count
            reported(*arguments, **options)
            # An error that the thread of a started run has reported meanwhile stays.
            if self._error_count == before:
                self.clear_error()
            else:
                self.reveal_error()

        return run

    def _reported(self, callback: Callable[Parameters, object]) -> Callable[Parameters, None]:
        """Wraps a callback so that its errors are displayed; its success clears none: the user did nothing."""

        @functools.wraps(callback)
        def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
            try:
                callback(*arguments, **options)
            except Exception as error:  # displayed to the user, whatever it is
                self.show_error(error)

        return run

    def show_error(self, error: BaseException) -> None:
        """Displays an error below the controls."""
        self._error_count += 1
        self._error_box.value = alert(error)

    def reveal_error(self) -> None:
        """Scrolls the page to the displayed error, after an action of the user."""
        self._page.reveal(".dp-problem")

    def clear_error(self) -> None:
        """Removes the displayed error."""
        self._error_box.value = ""

    @property
    def problem(self) -> str:
        """The displayed error as HTML; empty if there is none."""
        return str(self._error_box.value)

    def static(self) -> go.Figure | None:
        """Returns the panel's content as a figure for a page without a kernel; None if there is nothing to draw."""
        return None

    def _ipython_display_(self) -> None:
        """Displays the static figure if :data:`STATIC` is set."""
        figure = self.static() if os.environ.get(STATIC) else None
        if figure is None:
            # IPython then requests the MIME bundle; returning an empty one would make it print all traits.
            raise NotImplementedError
        # As plotly displays a figure at the end of a cell, with the configured renderer.
        figure._ipython_display_()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Returns the widget's MIME bundle; a line of text if :data:`STATIC` is set."""
        if os.environ.get(STATIC):
            return {"text/plain": f"({type(self).__name__}: open the notebook to use it)"}
        return super()._repr_mimebundle_(**options)


def alert(error: BaseException, what: str = "") -> str:
    """Returns an error, after what failed, as HTML that screen readers announce; no DeeppoolError: with its type."""
    message = what + (str(error) if isinstance(error, DeeppoolError) else f"{type(error).__name__}: {error}")
    return f'<div role="alert" style="color: var(--jp-error-color1, #b00)">{html.escape(message)}</div>'


def _figures(widgets: Sequence[ipywidgets.Widget]) -> Iterator[LiveFigure]:
    """Yields the figures among widgets and their descendants."""
    for widget in widgets:
        if isinstance(widget, LiveFigure):
            yield widget
        yield from _figures(getattr(widget, "children", ()))


def _kebab(name: str) -> str:
    return "".join("-" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("-")

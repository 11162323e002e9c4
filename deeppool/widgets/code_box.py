"""Buttons that copy the code of what a panel shows, as Python and as a command."""

import functools
import html
from collections.abc import Callable
from typing import TYPE_CHECKING

import ipywidgets

if TYPE_CHECKING:
    from deeppool.widgets.panel import Panel


class CodeBox(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Two buttons, and below them the code that was copied last; call :meth:`connect` when the panel exists."""

    def __init__(self, python: Callable[[], str], command: Callable[[], str], *others: ipywidgets.Widget) -> None:
        """Shows no code yet.

        Args:
            python: returns a cell.
            command: returns a command line.
            others: further widgets in the row of the buttons, before them.
        """
        self._texts = {"Copy as Python": python, "Copy as command": command}
        self.buttons = [ipywidgets.Button(description=name, layout={"width": "auto"}) for name in self._texts]
        self.code = ipywidgets.HTML()
        self.text = ""
        """What was copied last."""
        row = ipywidgets.HBox([*others, *self.buttons], layout={"flex_flow": "row wrap"})
        super().__init__([row, self.code])

    def connect(self, panel: "Panel") -> None:
        """Makes the buttons copy by the page of a panel."""
        for button, make in zip(self.buttons, self._texts.values(), strict=True):
            panel.on_click(button, functools.partial(self._copy, panel, make))

    def _copy(self, panel: "Panel", make: Callable[[], str]) -> None:
        self.text = make()
        self.code.value = f'<pre class="dp-code" tabindex="0">{html.escape(self.text)}</pre>'
        panel.copy(self.text)

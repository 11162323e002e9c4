"""Part of every panel: reports the page's theme, handles keys and resizing, and says when a click got no answer."""

from pathlib import Path
from typing import Any

import anywidget
import traitlets

NARROW = 560
"""Pixels of a panel below which the label of a control stands above it, as in ``page.js``."""


class Page(anywidget.AnyWidget):
    """A widget that is invisible until a click gets no answer; it must be displayed to do its work.

    It reports the page's theme to the kernel, routes key presses in its panel to the panel's controls, and resizes
    figures with the panel. Jupyter drops a click without a word where the kernel was restarted, or where the kernel's
    subshell that a button's messages go to has been deleted. Five seconds after a click that the kernel has not
    acknowledged, the widget says so, and which command ends a run. It also says when the kernel was restarted.
    """

    _esm = Path(__file__).parent / "page.js"
    _css = Path(__file__).parent / "page.css"

    dark: Any = traitlets.Bool(False).tag(sync=True)
    width: Any = traitlets.Int(0).tag(sync=True)
    """Pixels of the panel's width, rounded down to multiples of 20; 0: not displayed yet."""

    def acknowledge_click(self) -> None:
        """Tells the page that the kernel handles its click."""
        self.send({"click": "handled"})

    def reveal(self, selector: str) -> None:
        """Scrolls a part of the panel into view, if it is out of it."""
        self.send({"reveal": selector})

    def copy(self, text: str) -> None:
        """Copies a text to the clipboard; a browser allows that within seconds of a click only."""
        self.send({"copy": text})

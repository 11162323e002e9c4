"""What plotly holds and has drawn of a figure in the page: the oracle of tests that move a control."""

import re
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Locator

READ = """plot => plot.layout && plot._fullData ? ({
    title: plot.layout.title?.text ?? "",
    paper: plot._fullLayout.paper_bgcolor,
    background: plot._fullLayout.plot_bgcolor,
    font: plot._fullLayout.font.color,
    axes: Object.fromEntries(Object.entries(plot._fullLayout).filter(([name]) => /^[xyz]axis[0-9]*$/.test(name))
        .map(([name, axis]) => [name, {title: axis.title?.text ?? "", range: axis.range ?? [], type: axis.type}])),
    traces: plot._fullData.map(trace => Object.fromEntries(
        ["type", "name", "visible", "x", "y", "z", "base", "text", "values", "labels", "opacity"]
            .filter(key => key in trace)
        .map(key => [key, ArrayBuffer.isView(trace[key]) ? Array.from(trace[key]) : trace[key]]))),
    drawn: Array.from(plot.querySelectorAll(".main-svg path[d], .main-svg image"))
        .filter(mark => !mark.closest(".legend, .hoverlayer, .modebar, .dragcover, defs"))
        .map(mark => (mark.getAttribute("d") || mark.getAttribute("href"))
            + (mark.getAttribute("transform") ?? "") + (mark.parentElement.getAttribute("transform") ?? "")),
    filled: Array.from(plot.querySelectorAll(".main-svg"))
        .map(svg => getComputedStyle(svg).backgroundColor).find(colour => colour !== "rgba(0, 0, 0, 0)") ?? "",
    letters: Array.from(plot.querySelectorAll(".main-svg text")).map(text => text.textContent).filter(Boolean),
    width: plot.getBoundingClientRect().width,
    height: plot.getBoundingClientRect().height,
}) : null"""
DRAWING, FRAME = 200, 25
"""Looks at a figure that plotly is still drawing, and milliseconds between them."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure as the page shows it."""

    title: str
    paper: str
    """Colour behind all of it, as plotly has it; ``filled`` is what the browser makes of that."""
    background: str
    """Colour behind the axes' area."""
    font: str
    axes: dict[str, dict[str, Any]]
    """``xaxis``, ``yaxis2`` … → title, range, type."""
    traces: list[dict[str, Any]]
    """Of each in ``_fullData``: type, name, visible, and its x, y, z, base, text, values, labels, opacity, if any."""
    drawn: list[str]
    """Every path's ``d`` (an image's data) with its place, but for the legend: what a reader sees of the data."""
    filled: str
    letters: list[str]
    """Every text in the figure."""
    width: float
    """Pixels."""
    height: float
    """Pixels."""

    def trace(self, name: str) -> dict[str, Any]:
        """The one of a name."""
        found = [trace for trace in self.traces if trace.get("name") == name]
        assert found, f"no trace '{name}': there are {[trace.get('name') for trace in self.traces]}"
        return found[0]


def read_figure(plot: Locator) -> Drawn:
    """Reads a ``.js-plotly-plot`` that is drawn."""
    plot.locator("svg.main-svg").first.wait_for()
    for _ in range(DRAWING):
        # One that has taken another's place is not drawn at once.
        if (found := plot.evaluate(READ)) is not None:
            return Drawn(**found)
        plot.page.wait_for_timeout(FRAME)
    raise AssertionError("the figure was not drawn")


def is_dark(colour: str) -> bool:
    """Whether a computed colour, ``rgb(22, 24, 28)``, is nearer to black than to white."""
    red, green, blue = (float(part) for part in re.findall(r"[0-9.]+", colour)[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue < 128

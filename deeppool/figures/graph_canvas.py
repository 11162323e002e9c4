"""A drawn graph in pixels: where its nodes, edges and labels are on a page.

Graphs of layers and of a plan share it, so that a layer has the same place in both.
"""

from collections.abc import Iterator, Mapping, Sequence

import plotly.graph_objects as go

from deeppool.figures import theme
from deeppool.figures.formatting import shorten
from deeppool.figures.graph_layout import Column, LayeredGraph, columns, layered_layout

ROW = 24
"""Height of a row in pixels."""
PAGE = 800
"""Width in pixels for which labels are shortened unless the page is known, as in a notebook on a laptop."""
MARGINS = {"l": 12, "r": 96, "b": 16}
"""Pixels beside and below the graph; the colour bar is at the right."""
SMALLEST_PAGE = 100
"""Least width in pixels that a graph is laid out for."""
TALL = 26
"""Number of rows above which a graph is drawn in several columns."""
NARROWEST = 190
"""Minimum width of a column in pixels."""
LANE = 34
"""Minimum distance between branches in pixels."""
CHARACTER = 6.2
"""Approximate width of a label's character in pixels."""
LONGEST = 30
"""Maximum characters of a label."""
BAR = 250
"""Length of the colour bar in pixels."""


class GraphCanvas:
    """Positions of nodes and edges in pixels."""

    def __init__(self, predecessors: Sequence[tuple[int, ...]], page: float = PAGE) -> None:
        """Lays out a graph.

        Args:
            predecessors: as of :func:`deeppool.graph.series_parallel.decompose`.
            page: width in pixels; on a narrow page there are fewer columns, and labels are shorter.
        """
        self.page = page
        self.placed: LayeredGraph = layered_layout(predecessors)
        self.edges = [(source, target) for target, sources in enumerate(predecessors) for source in sources]
        width = max(NARROWEST, self.placed.width * LANE + NARROWEST / 2)
        wanted = min(-(-self.placed.height // TALL), max(1, int(page / width)))
        self.columns: tuple[Column, ...] = columns(self.placed, self.edges, wanted)
        self.height = max(column.end - column.first for column in self.columns)
        self.width = page / len(self.columns)
        # With few branches, lanes need no more than the width of a label.
        self.lane = min(150.0, (self.width - 20) / self.placed.width)

    def column(self, row: int) -> int:
        """Returns the column of a row."""
        return next(index for index, column in enumerate(self.columns) if row < column.end)

    def at(self, row: float, lane: int, column: int) -> tuple[float, float]:
        """Returns the pixels of a place; half rows lie between labels."""
        return column * self.width + lane * self.lane, (row - self.columns[column].first) * ROW

    def of(self, layer: int) -> tuple[float, float]:
        """Returns the pixels of a node."""
        row = self.placed.rows[layer]
        return self.at(row, self.placed.lanes[layer], self.column(row))

    def room(self) -> list[int]:
        """Returns, per layer, the characters that fit between it and the next layer or edge in its row."""
        occupied: dict[int, set[int]] = {}
        for layer, row in enumerate(self.placed.rows):
            occupied.setdefault(row, set()).add(self.placed.lanes[layer])
        for source, target in self.edges:
            for row in range(self.placed.rows[source] + 1, self.placed.rows[target]):
                occupied.setdefault(row, set()).add(self.lane_of(source, target))
        found = []
        for layer, row in enumerate(self.placed.rows):
            lane = self.placed.lanes[layer]
            right = min((other for other in occupied[row] if other > lane), default=None)
            pixels = self.width - lane * self.lane if right is None else (right - lane) * self.lane
            found.append(min(LONGEST, int((pixels - 18) / CHARACTER)))
        return found

    def lane_of(self, source: int, target: int) -> int:
        """Returns the lane of an edge."""
        lanes = self.placed.lanes
        return self.placed.edge_lanes.get((source, target), max(lanes[source], lanes[target]))

    def path(self, source: int, target: int) -> Iterator[tuple[float | None, float | None]]:
        """Yields the corners of an edge, which continues from the bottom of a column at the top of the next one."""
        first, last = self.placed.rows[source], self.placed.rows[target]
        lane = self.lane_of(source, target)
        begin, end = self.column(first), self.column(last)
        # Changes lanes only between two rows, where there is no label.
        yield self.of(source)
        yield self.at(first + 0.5, self.placed.lanes[source], begin)
        yield self.at(first + 0.5, lane, begin)
        for column in range(begin, end):
            yield self.at(self.columns[column].end - 0.4, lane, column)
            yield None, None
            yield self.at(self.columns[column + 1].first - 0.6, lane, column + 1)
        yield self.at(last - 0.5, lane, end)
        yield self.at(last - 0.5, self.placed.lanes[target], end)
        yield self.of(target)


def page_of(width: float | None) -> float:
    """Returns the pixels that a graph has in a figure of a width; None, or a wide figure: :data:`PAGE`."""
    if width is None:
        return PAGE
    return min(PAGE, max(SMALLEST_PAGE, width - MARGINS["l"] - MARGINS["r"]))


def edge_lines(page: GraphCanvas, *, dark: bool) -> go.Scatter:
    """Returns all edges as one trace."""
    corners = [corner for edge in page.edges for corner in (*page.path(*edge), (None, None))]
    return go.Scatter(
        mode="lines",
        x=[x for x, _ in corners],
        y=[y for _, y in corners],
        line={"color": theme.soft(dark=dark), "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
    )


def canvas_layout(page: GraphCanvas) -> dict[str, object]:
    """Returns the axes of a drawn graph, without labels; they can be zoomed."""
    return {
        "xaxis": {"visible": False, "range": [-14, page.page]},
        "yaxis": {"visible": False, "range": [(page.height - 0.2) * ROW, -0.8 * ROW]},
        "dragmode": "zoom",
    }


def colour_axis(title: str, low: float, high: float, ticks: Mapping[float, str], *, dark: bool) -> dict[str, object]:
    """Returns the colours of nodes from a lowest to a highest value, with a bar beside the graph and its labels."""
    return {
        "colorscale": theme.ramp(dark=dark),
        "cmin": low,
        "cmax": high,
        "colorbar": {
            "title": {"text": title, "side": "right"},
            "tickvals": list(ticks),
            "ticktext": list(ticks.values()),
            "thickness": 14,
            "len": BAR,
            "lenmode": "pixels",
            "y": 1,
            "yanchor": "top",
        },
    }


def fit_label(name: str, room: int) -> str:
    """Shortens a name to ``room`` characters, keeping the end of its path; empty if nothing readable fits."""
    if len(name) <= room:
        return name
    last = name.rpartition(".")[2]
    if len(last) + 1 >= room:
        return shorten(last, room) if room >= 4 else ""
    return f"…{name[1 - room :].lstrip('.')}"

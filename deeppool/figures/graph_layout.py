"""Positions of layers in a drawn graph: a row per depth, a lane per branch, and columns of rows.

row 0   o             0
    1   o─┬───┐       a fork
    2   o o   │       parallel branches, and an edge that skips them in a lane of its own
    3   o │   │
    4   o─┴───┘       the join
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from deeppool.graph.series_parallel import INPUT, NonSeriesParallel, ParallelBlock, Series, decompose, layers_of


@dataclass(frozen=True, slots=True)
class LayeredGraph:
    """Row and lane of every layer, and lanes of edges that skip rows."""

    rows: tuple[int, ...]
    """Length of the longest path to each layer, in edges."""
    lanes: tuple[int, ...]
    """Lane of each layer; no two layers share both row and lane."""
    edge_lanes: dict[tuple[int, int], int]
    """Lane of each edge (from, to) that skips rows."""

    @property
    def height(self) -> int:
        """Number of rows."""
        return max(self.rows) + 1

    @property
    def width(self) -> int:
        """Number of lanes."""
        return max([*self.lanes, *self.edge_lanes.values()]) + 1


def layered_layout(predecessors: Sequence[tuple[int, ...]]) -> LayeredGraph:
    """Lays out a graph; a branch of its series-parallel structure stays in one lane.

    Args:
        predecessors: as of :func:`deeppool.graph.series_parallel.decompose`; of a part of a graph, in which several
            layers may end paths, too.
    """
    count = len(predecessors)
    read = {source for sources in predecessors for source in sources}
    ends = tuple(layer for layer in range(count) if layer not in read)
    # Where several layers end paths, one that is not drawn joins them.
    joined = [*predecessors, *([ends] if len(ends) > 1 else [])]
    rows: list[int] = []
    for sources in joined:
        rows.append(1 + max((rows[source] for source in sources), default=-1))
    placing = _LayoutBuilder(joined, rows)
    placing.place(decompose(joined), 0, INPUT, len(joined))
    edge_lanes = {edge: lane for edge, lane in placing.edge_lanes.items() if max(edge) < count}
    return LayeredGraph(tuple(rows[:count]), tuple(placing.lanes[:count]), edge_lanes)


class _LayoutBuilder:
    def __init__(self, predecessors: Sequence[tuple[int, ...]], rows: Sequence[int]) -> None:
        self.predecessors, self.rows = predecessors, rows
        self.lanes = [0] * len(rows)
        self.edge_lanes: dict[tuple[int, int], int] = {}

    def place(self, part: Series, lane: int, fork: int, join: int) -> int:
        """Lays out a series that starts at ``lane``; returns the number of lanes it takes."""
        width, before = 1, fork
        for layer, block in zip(part.layers, part.blocks, strict=True):
            self.lanes[layer] = lane
            width = max(width, self._between(block, lane, before, layer))
            before = layer
        if before != fork:
            width = max(width, self._between(part.tail, lane, before, join))
        self._leave(before, join, lane)
        return width

    def _between(self, block: ParallelBlock | NonSeriesParallel | None, lane: int, fork: int, join: int) -> int:
        if block is None:
            return 1
        if isinstance(block, NonSeriesParallel):
            return self._place_region(block, lane, fork, join)
        free = lane
        # The longest branch continues in the same lane: in a residual block the shortcut moves aside.
        for branch in sorted(block.branches, key=lambda branch: -len(layers_of(branch))):
            free += self.place(branch, free, fork, join)
        if block.direct:
            self.edge_lanes[fork, join] = free
            free += 1
        return free - lane

    def _place_region(self, region: NonSeriesParallel, lane: int, fork: int, join: int) -> int:
        """Lays out layers of equal depth next to each other; all edges that skip rows share one further lane."""
        taken: Counter[int] = Counter()
        for layer in region.layers:
            self.lanes[layer] = lane + taken[self.rows[layer]]
            taken[self.rows[layer]] += 1
        width = max(taken.values())
        for layer in (*region.layers, join):
            for source in self.predecessors[layer] if layer < len(self.rows) else ():
                if self.rows[layer] - self.rows[source] > 1 and (source == fork or source in region.layers):
                    self.edge_lanes[source, layer] = lane + width
        return width + 1

    def _leave(self, last: int, join: int, lane: int) -> None:
        """Keeps the edge from the end of a short branch to the join in the branch's lane."""
        reads = join < len(self.rows) and last in self.predecessors[join]
        if reads and self.rows[join] - self.rows[last] > 1:
            self.edge_lanes.setdefault((last, join), lane)


@dataclass(frozen=True, slots=True)
class Column:
    """A range of rows that are drawn in one column."""

    first: int
    end: int
    """First row of the next column."""


def columns(placed: LayeredGraph, edges: Sequence[tuple[int, int]], count: int) -> tuple[Column, ...]:
    """Divides the rows into at most ``count`` columns of similar height, preferably between blocks."""
    height = placed.height
    # Per row, the number of layers whose outputs are read below it: 1 is a good end of a column.
    live_outputs = [0] * height
    last_read: dict[int, int] = {}
    for source, target in edges:
        last_read[source] = max(last_read.get(source, 0), placed.rows[target])
    for source, end in last_read.items():
        for row in range(placed.rows[source], end):
            live_outputs[row] += 1
    found: list[Column] = []
    first = 0
    for left in range(count, 0, -1):
        wanted = -(-(height - first) // left)
        end = min(first + wanted, height)
        if left > 1 and end < height:
            # Rather shorter or longer by a quarter than through the middle of a block.
            near = range(max(first + 1, end - wanted // 4), min(height, end + wanted // 4 + 1))
            end = min((row for row in near if live_outputs[row - 1] == 1), key=lambda row: abs(row - end), default=end)
        if end > first:
            found.append(Column(first, end))
        first = end
    return tuple(found)

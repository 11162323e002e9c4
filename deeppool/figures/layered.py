"""Where the layers of a graph stand when it is drawn: a row per depth, a lane per branch, columns as in a newspaper.

row 0   o             0
    1   o─┬───┐       1 forks
    2   o o   │       2 and 3 side by side, and an edge past them that has a lane of its own
    3   o │   │
    4   o─┴───┘       the join
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from deeppool.graph.series_parallel import INPUT, Irregular, ParallelBlock, Series, decompose, layers_of


@dataclass(frozen=True, slots=True)
class Layered:
    """A place for every layer."""

    rows: tuple[int, ...]
    """Per layer the longest path that leads to it, in edges."""
    lanes: tuple[int, ...]
    """Per layer; no two layers have the same row and lane."""
    passing: dict[tuple[int, int], int]
    """Edge (from, to) that skips rows → the lane in which it does."""

    @property
    def height(self) -> int:
        """Rows."""
        return max(self.rows) + 1

    @property
    def width(self) -> int:
        """Lanes."""
        return max([*self.lanes, *self.passing.values()]) + 1


def layered(predecessors: Sequence[tuple[int, ...]]) -> Layered:
    """Lays a graph out; branches that the graph's series-parallel structure knows keep a lane to their end.

    Args:
        predecessors: as of :func:`deeppool.graph.series_parallel.decompose`.
    """
    rows: list[int] = []
    for sources in predecessors:
        rows.append(1 + max((rows[source] for source in sources), default=-1))
    placing = _Placing(predecessors, rows)
    placing.place(decompose(predecessors), 0, INPUT, len(predecessors))
    return Layered(tuple(rows), tuple(placing.lanes), placing.passing)


class _Placing:
    def __init__(self, predecessors: Sequence[tuple[int, ...]], rows: Sequence[int]) -> None:
        self.predecessors, self.rows = predecessors, rows
        self.lanes = [0] * len(rows)
        self.passing: dict[tuple[int, int], int] = {}

    def place(self, part: Series, lane: int, fork: int, join: int) -> int:
        """Lays out a series from ``lane`` on, and says how many lanes it takes."""
        width, before = 1, fork
        for layer, block in zip(part.layers, part.blocks, strict=True):
            self.lanes[layer] = lane
            width = max(width, self._between(block, lane, before, layer))
            before = layer
        if before != fork:
            width = max(width, self._between(part.tail, lane, before, join))
        self._leave(before, join, lane)
        return width

    def _between(self, block: ParallelBlock | Irregular | None, lane: int, fork: int, join: int) -> int:
        if block is None:
            return 1
        if isinstance(block, Irregular):
            return self._knot(block, lane, fork, join)
        free = lane
        # The longest goes straight on: in a residual block the shortcut is what stands aside.
        for branch in sorted(block.branches, key=lambda branch: -len(list(layers_of(branch)))):
            free += self.place(branch, free, fork, join)
        if block.direct:
            self.passing[fork, join] = free
            free += 1
        return free - lane

    def _knot(self, knot: Irregular, lane: int, fork: int, join: int) -> int:
        """Side by side where the depth is the same; what skips rows runs together in one lane beside them."""
        taken: Counter[int] = Counter()
        for layer in knot.layers:
            self.lanes[layer] = lane + taken[self.rows[layer]]
            taken[self.rows[layer]] += 1
        width = max(taken.values())
        for layer in (*knot.layers, join):
            for source in self.predecessors[layer] if layer < len(self.rows) else ():
                if self.rows[layer] - self.rows[source] > 1 and (source == fork or source in knot.layers):
                    self.passing[source, layer] = lane + width
        return width + 1

    def _leave(self, last: int, join: int, lane: int) -> None:
        """A short branch goes down its own lane to the join."""
        reads = join < len(self.rows) and last in self.predecessors[join]
        if reads and self.rows[join] - self.rows[last] > 1:
            self.passing.setdefault((last, join), lane)


@dataclass(frozen=True, slots=True)
class Column:
    """Consecutive rows that stand above one another."""

    first: int
    end: int
    """The first row of the next column."""


def columns(placed: Layered, edges: Sequence[tuple[int, int]], count: int) -> tuple[Column, ...]:
    """Divides the rows into at most ``count`` columns of similar height, where it can, between blocks."""
    height = placed.height
    # Per row, the layers whose results are read below it: one where a column may well end.
    handed = [0] * height
    last_read: dict[int, int] = {}
    for source, target in edges:
        last_read[source] = max(last_read.get(source, 0), placed.rows[target])
    for source, end in last_read.items():
        for row in range(placed.rows[source], end):
            handed[row] += 1
    found: list[Column] = []
    first = 0
    for left in range(count, 0, -1):
        wanted = -(-(height - first) // left)
        end = min(first + wanted, height)
        if left > 1 and end < height:
            # A little shorter or longer, rather than through the middle of a block.
            near = range(max(first + 1, end - wanted // 4), min(height, end + wanted // 4 + 1))
            end = min((row for row in near if handed[row - 1] == 1), key=lambda row: abs(row - end), default=end)
        if end > first:
            found.append(Column(first, end))
        first = end
    return tuple(found)

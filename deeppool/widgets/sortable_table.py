"""A table whose columns sort and whose rows can be chosen, by mouse and by keyboard."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anywidget
import traitlets

_HERE = Path(__file__).parent

Cell = tuple[str, float | str]
"""What is shown, and what it is sorted by."""


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """One column."""

    title: str
    """With the unit, where each cell does not name its own."""
    numeric: bool = True
    """Right-aligned, and the largest first when it is sorted for the first time."""
    hint: str = ""
    """What it means, where the title cannot say it."""


class SortableTable(anywidget.AnyWidget):
    """Rows of cells. Headers and rows are buttons: Tab reaches them, arrows go from row to row, Enter chooses."""

    _esm = _HERE / "sortable_table.js"
    _css = _HERE / "sortable_table.css"

    caption: Any = traitlets.Unicode().tag(sync=True)
    """Read aloud, and shown above."""
    heads: Any = traitlets.List().tag(sync=True)
    cells: Any = traitlets.List().tag(sync=True)
    """Per row, per column: [shown, sorted by]."""
    selected: Any = traitlets.List(traitlets.Int()).tag(sync=True)
    """Rows that are chosen, by their place in ``cells``, in the order of choosing."""
    most: Any = traitlets.Int(8).tag(sync=True)
    """Rows that can be chosen at once; one more replaces the oldest."""
    sort_by: Any = traitlets.Int(0).tag(sync=True)
    """Column."""
    descending: Any = traitlets.Bool(False).tag(sync=True)

    def fill(self, caption: str, heads: Sequence[ColumnHead], rows: Sequence[Sequence[Cell]]) -> None:
        """Shows other rows, sorted as before; what was chosen stays chosen where its row still is."""
        with self.hold_sync():
            self.caption = caption
            self.heads = [{"title": x.title, "numeric": x.numeric, "hint": x.hint} for x in heads]
            self.cells = [[list(cell) for cell in row] for row in rows]
            self.selected = [row for row in self.selected if row < len(rows)]
            self.sort_by = min(self.sort_by, max(len(heads) - 1, 0))

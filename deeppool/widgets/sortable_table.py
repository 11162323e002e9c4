"""A table with sortable columns, a filter and selectable rows, operated by mouse or keyboard."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anywidget
import traitlets

_HERE = Path(__file__).parent

Cell = tuple[str, float | str]
"""Displayed text and sort key."""


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """Header of one column."""

    title: str
    """Title, with the unit unless each cell names its own."""
    numeric: bool = True
    """Whether the column is right-aligned and first sorts in descending order."""
    hint: str = ""
    """Tooltip that explains the column."""
    least_width: int = 0
    """Pixels of the table from which the column is shown; on a narrower page it is in the tooltip of the row's name."""


class SortableTable(anywidget.AnyWidget):
    """A table whose headers and rows are buttons: Tab focuses them, arrow keys change the row, Enter selects."""

    _esm = _HERE / "sortable_table.js"
    _css = _HERE / "sortable_table.css"

    caption: Any = traitlets.Unicode().tag(sync=True)
    """Caption above the table, also for screen readers."""
    heads: Any = traitlets.List().tag(sync=True)
    cells: Any = traitlets.List().tag(sync=True)
    """Displayed text and sort key of each cell, by row and column."""
    selected: Any = traitlets.List(traitlets.Int()).tag(sync=True)
    """Indices into ``cells`` of the selected rows, in the order of selection."""
    most: Any = traitlets.Int(8).tag(sync=True)
    """Maximum number of selected rows; selecting another one replaces the oldest."""
    filter: Any = traitlets.Unicode().tag(sync=True)
    """Words that the texts of a row must contain for it to be shown, in upper or lower case; numbers do not count."""
    sort_by: Any = traitlets.Int(0).tag(sync=True)
    """Index of the column that sorts the rows."""
    descending: Any = traitlets.Bool(False).tag(sync=True)

    def fill(self, caption: str, heads: Sequence[ColumnHead], rows: Sequence[Sequence[Cell]]) -> None:
        """Replaces the rows, keeping the sort order and the selection of rows that still exist."""
        with self.hold_sync():
            self.caption = caption
            self.heads = [asdict(x) for x in heads]
            self.cells = [[list(cell) for cell in row] for row in rows]
            self.selected = [row for row in self.selected if row < len(rows)]
            self.sort_by = min(self.sort_by, max(len(heads) - 1, 0))

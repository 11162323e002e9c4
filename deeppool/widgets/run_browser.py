"""Browses the records of a folder: shows one, compares two."""

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets
import plotly.graph_objects as go
import traitlets

from deeppool.figures.formatting import preformatted, shorten
from deeppool.figures.record_view import RecordView, comparison_view, record_view
from deeppool.planning.report.comparison import Comparison
from deeppool.records.files import load
from deeppool.records.record_index import Entry, record_index
from deeppool.units import format_bytes
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.page import NARROW
from deeppool.widgets.panel import Panel

ROWS = 8
LONGEST_NAME, SHORTEST_NAME, KIND, SHORTEST_KIND, MODEL, SIZE = 38, 14, 14, 10, 12, 9
"""Characters of the columns of the file lists."""
TIME, SHORT_TIME = "%Y-%m-%d %H:%M:%S", "%m-%d %H:%M"
LONG, SHORT = 19, 11
"""Characters of these times."""
GAP = 2
"""Characters between two columns."""
CHARACTER, FRAME, LABEL_WIDTH = 7.9, 40, 112
"""Pixels of a character, of what is beside the text of a list, and of the label that stands beside it."""
LABEL = {"description_width": "8em"}
NOTHING = "nothing"
"""Entry of the comparison list for no comparison."""
STYLE = "<style>.dp-run-browser .dp-fixed select { font-family: var(--jp-code-font-family, monospace) }</style>"
"""A fixed-width font aligns the columns of the file lists."""


class RunBrowser(Panel):
    """Lists the records of a folder, newest first, shows the selected one, and compares it with a second one.

    Other or damaged files are listed with the reason why they cannot be shown.
    """

    selected: Any = traitlets.Any(None)
    """The displayed record, to observe or to link; None if there is none, or the selected file is not a record."""

    def __init__(self, folder: str | os.PathLike[str] = "runs") -> None:
        """Lists a folder; a file is read when it is selected."""
        self.entries: tuple[Entry, ...] = ()
        self.compared: Comparison | None = None
        """Comparison with the second record; None if no second one is selected."""
        self._loaded: dict[tuple[Path, datetime.datetime], Any] = {}
        self._view: RecordView | None = None
        self._filling, self._room = False, line_room(None)
        self.folder = ipywidgets.Text(
            str(folder), description="Folder", continuous_update=False, style=LABEL, layout={"width": "40em"}
        )
        self.scan = ipywidgets.Button(description="Scan again")
        self.files = ipywidgets.Select(description="File", rows=ROWS, style=LABEL, layout={"width": "98%"})
        self.other = ipywidgets.Dropdown(description="Compare with", style=LABEL, layout={"width": "98%"})
        self.status = ipywidgets.HTML()
        self.figure = LiveFigure()
        self._drawn = ipywidgets.VBox([self.figure])
        self.text = ipywidgets.HTML()
        top = ipywidgets.HBox([self.folder, self.scan])
        super().__init__([ipywidgets.HTML(STYLE), top, self.status, self.files, self.other, self._drawn, self.text])
        self.files.add_class("dp-fixed")
        self.other.add_class("dp-fixed")
        self.files.observe(self.guarded(lambda _: self._unless_filling(self._choose)), "value")
        self.other.observe(self.guarded(lambda _: self._unless_filling(self._draw)), "value")
        self.folder.observe(self.guarded(lambda _: self.rescan()), "value")
        self.on_click(self.scan, self.rescan)
        self.on_theme(self._draw)
        self.on_width(self._fit_lines)
        self.guarded(self.rescan)()

    def rescan(self) -> None:
        """Lists the folder again; selected files that still exist stay selected.

        Raises:
            DocumentError: the folder does not exist, or the selected file is not a record.
        """
        chosen, other = self.files.value, self.other.value
        try:
            self.entries = record_index(self.folder.value)
        except Exception:
            self.entries = ()
            self._offer(None, None)
            raise
        finally:
            ours = sum(entry.problem is None for entry in self.entries)
            self.status.value = _summary(ours, len(self.entries) - ours)
        self._offer(chosen, other)
        self._choose()

    def static(self) -> go.Figure | None:
        """Returns the displayed figure."""
        return None if self._view is None else self._view.figure

    def _offer(self, chosen: Path | None, other: Path | None) -> None:
        """Fills both lists; selects the newest record if the previous selection is gone."""
        paths = [entry.path for entry in self.entries]
        good = [entry.path for entry in self.entries if entry.problem is None]
        lines = [(line(entry, self._room), entry.path) for entry in self.entries]
        # A new list of options selects its first entry, which must not be read.
        self._filling = True
        try:
            self.files.options = lines
            self.files.value = chosen if chosen in paths else good[0] if good else paths[0] if paths else None
            self.other.options = [(NOTHING, NOTHING), *(one for one in lines if one[1] in good)]
            self.other.value = other if other in good else NOTHING
        finally:
            self._filling = False
        self.files.disabled, self.other.disabled = not paths, len(good) < 2

    def _fit_lines(self) -> None:
        """Lists the same files in the columns that the page has room for."""
        room = line_room(self.page_width)
        if room != self._room:
            self._room = room
            self._offer(self.files.value, self.other.value)

    def _unless_filling(self, act: Callable[[], None]) -> None:
        if not self._filling:
            act()

    def _choose(self) -> None:
        self.selected = None
        path = self.files.value
        try:
            if path is not None:
                self.selected = self._read(path)
        finally:
            self._draw()

    def _read(self, path: Path) -> Any:
        """Returns a record, read once for each version of its file."""
        key = path, next(entry.saved for entry in self.entries if entry.path == path)
        if key not in self._loaded:
            self._loaded = {known: record for known, record in self._loaded.items() if known[0] != path}
            self._loaded[key] = load(path)
        return self._loaded[key]

    def _draw(self) -> None:
        self.compared, self._view = None, None
        try:
            if self.selected is not None and self.other.value not in (NOTHING, self.files.value):
                chosen = self.files.value, self.other.value
                both = [self._read(entry.path) for entry in reversed(self.entries) if entry.path in chosen]
                # The older one comes first, whichever was chosen first. A copy's file is newer than its record.
                before, after = sorted(both, key=lambda record: getattr(record, "date", ""))
                self._view = comparison_view(before, after, dark=self.dark)
                self.compared = self._view.comparison
            elif self.selected is not None:
                self._view = record_view(self.selected, dark=self.dark)
        finally:
            self._show(None if self._view is None else self._view.figure)
            text = "" if self._view is None else self._view.text
            self.text.value = preformatted(text) if text else ""

    def _show(self, figure: go.Figure | None) -> None:
        """Draws a figure, in place if the displayed one has the same title."""
        self._drawn.layout.display = "none" if figure is None else None
        if figure is None:
            return
        if self.figure.layout.title.text == figure.layout.title.text:
            self.figure.draw(figure)
            return
        # Plotly on the page keeps a category axis: bars by name would leave their names on an axis of seconds.
        old, self.figure = self.figure, LiveFigure(figure)
        # Before it is displayed, since the page reports its width only when that changes.
        self._fit()
        self._drawn.children = (self.figure,)
        old.close()


def line_room(width: int | None) -> int:
    """Returns the characters of a line in the lists of a panel of some pixels; None: a laptop's."""
    most = LONG + LONGEST_NAME + KIND + MODEL + SIZE + 4 * GAP
    if width is None:
        return most
    label = LABEL_WIDTH if width >= NARROW else 0
    return min(most, max(0, int((width - label - FRAME) / CHARACTER)))


def line(entry: Entry, room: int) -> str:
    """Returns a file's row in the list, with non-breaking spaces, which a list box does not collapse.

    Where there is little room, the size, the model and the time are left out, and a time has no year and no seconds.

    Args:
        entry: the file.
        room: characters of the row.
    """
    widths, name = _columns(room)
    row = f"{entry.saved:{TIME if widths['time'] == LONG else SHORT_TIME}}".ljust(widths["time"] + GAP)
    row = row * bool(widths["time"]) + shorten(entry.path.name, name).ljust(name + GAP)
    if entry.problem is not None:
        row += entry.problem
    else:
        kind, model = entry.kind or "", entry.model or ""
        row += shorten(kind, widths["kind"]).ljust(widths["kind"] + GAP)
        row += shorten(model, widths["model"]).ljust(widths["model"] + GAP) * bool(widths["model"])
        row += format_bytes(entry.size) * bool(widths["size"])
    return row.rstrip().replace(" ", "\u00a0")


def _columns(room: int) -> tuple[dict[str, int], int]:
    """Returns the characters of the columns, 0 for those that are left out, and of the name."""
    left = room - SHORTEST_NAME - GAP
    # A kind is readable with fewer characters, where the time then fits.
    beside = SHORT + GAP if left >= SHORTEST_KIND + SHORT + GAP else 0
    widths = {"kind": max(1, min(KIND, left - beside)), "time": 0, "model": 0, "size": 0}
    left -= widths["kind"]
    for column, characters in (("time", SHORT), ("model", MODEL), ("size", SIZE)):
        if left >= characters + GAP:
            widths[column] = characters
            left -= characters + GAP
    if widths["size"] and left >= LONG - SHORT:
        widths["time"] = LONG
        left -= LONG - SHORT
    return widths, min(LONGEST_NAME, SHORTEST_NAME + max(0, left))


def _summary(ours: int, others: int) -> str:
    if not ours:
        found = "There are no records here yet" if not others else f"None of the {others} JSON files here is a record"
        return (
            f"{found}. <code>dp.save(record, path)</code>, a <code>CollocationPanel</code> and commands with "
            "<code>-o</code> write records; then press <b>Scan again</b>, or enter another folder."
        )
    beside = f", and {others} other JSON file{'s' * (others > 1)}" if others else ""
    return f"{ours} record{'s' * (ours > 1)}{beside}, the newest first"

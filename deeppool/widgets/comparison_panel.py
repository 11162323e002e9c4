"""Compares ways to train on live ranks from a notebook, and shows each repetition as it is measured."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import ipywidgets
import plotly.graph_objects as go
import traitlets

from deeppool.errors import InvalidValueError
from deeppool.figures.formatting import preformatted
from deeppool.records.confidence_interval import check_repetitions
from deeppool.runs.handle import RunHandle, start
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.panel import Panel
from deeppool.widgets.run_row import RunRow

EMPTY = (
    "Nothing has run yet. <b>Launch</b> starts ranks on this machine and then trains in every selected way in turn; "
    "rounds are drawn after each repetition."
)
Record = TypeVar("Record")


class ComparisonPanel(Panel, Generic[Record]):
    """Measures selected ways by turns; :attr:`record` is the newest record. Errors stand below the controls."""

    record: Any = traitlets.Any(None)
    """What was measured so far, or by the last run, to observe or to link; None: nothing."""

    def __init__(self, ways: Sequence[str], selected: Sequence[str], *, repetitions: int, label: str = "ways") -> None:
        """Lays out the controls; ranks start when **Launch** is pressed or :meth:`begin` is called.

        Args:
            ways: ways that can be selected, in the order in which they are measured.
            selected: those selected at first.
            repetitions: times that all ways are measured, which can be changed in the panel.
            label: of the list of ways, and name of the argument that takes them.

        Raises:
            InvalidValueError: an unknown way is selected, or nothing would be measured.
        """
        check_repetitions(repetitions)
        if unknown := [name for name in selected if name not in ways]:
            raise InvalidValueError(f"{label} must be some of {', '.join(ways)}, got {unknown[0]}")
        self.ways = ipywidgets.SelectMultiple(
            description=label, options=tuple(ways), value=tuple(selected), rows=len(ways), layout={"width": "24em"}
        )
        self.repetitions = ipywidgets.BoundedIntText(
            description="repetitions", value=repetitions, min=1, max=max(100, repetitions)
        )
        self.row: RunRow[Record] = RunRow("Launch", self._start, self._print, self._print)
        self.status = ipywidgets.HTML(EMPTY)
        self._drawing = threading.RLock()
        self._controls = (
            ipywidgets.HBox([self.ways, ipywidgets.VBox([self.repetitions, *self.more_controls()])]),
            self.row,
            self.status,
        )
        super().__init__(self._controls)
        self.row.connect(self)
        self.on_theme(self._draw)

    def more_controls(self) -> list[ipywidgets.Widget]:
        """Returns controls beside the list of ways."""
        return []

    def comparison(self) -> tuple[Callable[..., Record], Any, dict[str, Any]]:
        """Returns the function that compares, what it compares, and its options beside those of the controls."""
        raise NotImplementedError

    def figures(self, record: Record) -> list[go.Figure]:
        """Returns what is drawn of a record."""
        raise NotImplementedError

    def text(self, record: Record) -> str:
        """Returns what is printed of a record at the end."""
        return str(record)

    def begin(self) -> RunHandle[Record]:
        """Starts the comparison with the settings of the controls, or returns the one in progress."""
        return self.row.launch()

    def static(self) -> go.Figure | None:
        """Returns the first figure of the newest record; None before there is one."""
        return None if self.record is None else self.figures(self.record)[0]

    def _start(self) -> RunHandle[Record]:
        self.record, self.status.value = None, ""
        self._draw()
        compare, what, options = self.comparison()
        options[self.ways.description] = [name for name in self.ways.options if name in self.ways.value]
        return start(compare, what, repetitions=self.repetitions.value, on_record=self._measured, **options)

    def _measured(self, record: Record) -> None:
        self.record = record
        self._draw()

    def _draw(self) -> None:
        with self._drawing:
            replaced = [child for child in self.children if isinstance(child, LiveFigure)]
            drawn = [] if self.record is None else self.figures(self.record)
            self.show(*self._controls, *map(LiveFigure, drawn))
            for figure in replaced:
                figure.close()

    def _print(self, *_: Record) -> None:
        """Prints what was measured, also where the comparison failed or was cancelled."""
        if self.record is not None:
            self.status.value = preformatted(self.text(self.record))

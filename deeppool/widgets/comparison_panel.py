"""Compares ways to train on live ranks from a notebook, and shows each repetition as it is measured."""

import html
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import ipywidgets
import plotly.graph_objects as go
import traitlets

from deeppool.errors import RunError
from deeppool.figures.formatting import preformatted
from deeppool.runs.handle import RunHandle, start
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.panel import Panel
from deeppool.widgets.run_panel import COLOURS
from deeppool.widgets.ticker import follow

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
        """
        self.run: RunHandle[Record] | None = None
        """The current run, or the last one."""
        self.ways = ipywidgets.SelectMultiple(
            description=label, options=tuple(ways), value=tuple(selected), rows=len(ways), layout={"width": "24em"}
        )
        self.repetitions = ipywidgets.BoundedIntText(
            description="repetitions", value=repetitions, min=1, max=max(100, repetitions)
        )
        self.launch = ipywidgets.Button(description="Launch", button_style="primary")
        self.stop = ipywidgets.Button(description="Stop", disabled=True)
        self.bar, self.status = ipywidgets.FloatProgress(max=1.0), ipywidgets.HTML(EMPTY)
        self._drawing = threading.RLock()
        self._controls = (
            ipywidgets.HBox([self.ways, ipywidgets.VBox([self.repetitions, *self.more_controls()])]),
            ipywidgets.HBox([self.launch, self.stop, self.bar]),
            self.status,
        )
        super().__init__(self._controls)
        self.on_click(self.launch, self.begin)
        self.on_click(self.stop, self.end)
        self.on_theme(self._draw)

    def more_controls(self) -> list[ipywidgets.Widget]:
        """Returns controls beside the list of ways."""
        return []

    def comparison(self) -> tuple[Callable[..., Record], Any, dict[str, Any]]:
        """Returns the function that compares, what it compares, and its options beside those of the controls."""
        raise NotImplementedError

    def start(self, ways: list[str], repetitions: int, on_record: Callable[[Record], None]) -> RunHandle[Record]:
        """Starts the comparison."""
        compare, what, options = self.comparison()
        options |= {self.ways.description: ways, "repetitions": repetitions, "on_record": on_record}
        return start(compare, what, **options)

    def figures(self, record: Record) -> list[go.Figure]:
        """Returns what is drawn of a record."""
        raise NotImplementedError

    def text(self, record: Record) -> str:
        """Returns what is printed of a record at the end."""
        return str(record)

    def begin(self) -> RunHandle[Record]:
        """Starts a comparison with the settings of the controls, as the button does.

        Raises:
            RunError: a comparison of this panel is still running.
        """
        if self.run is not None and self.run.state == "running":
            raise RunError("a comparison of this panel is still running (stop it first)")
        self.record = None
        chosen = [name for name in self.ways.options if name in self.ways.value]
        run = self.run = self.start(chosen, self.repetitions.value, self._measured)
        self.launch.disabled, self.stop.disabled = True, False
        follow(run, lambda: self._follow(run))
        return run

    def end(self) -> None:
        """Ends the comparison and all of its processes, as the button does."""
        if self.run is not None:
            self.run.request_cancel()

    def static(self) -> go.Figure | None:
        """Returns the first figure of the newest record; None before there is one."""
        return None if self.record is None else self.figures(self.record)[0]

    def _measured(self, record: Record) -> None:
        self.record = record
        self._draw()

    def _draw(self) -> None:
        with self._drawing:
            if self.record is not None:
                replaced = [child for child in self.children if isinstance(child, LiveFigure)]
                self.show(*self._controls, *map(LiveFigure, self.figures(self.record)))
                for figure in replaced:
                    figure.close()

    def _follow(self, run: RunHandle[Any]) -> None:
        """Shows the progress of the run, in its thread."""
        if run is not self.run:
            return
        with self._drawing:
            self.bar.value, self.bar.bar_style = run.progress, COLOURS[run.state]
            self.status.value = html.escape(repr(run))
            if run.state == "running":
                return
            if run.state == "failed" and run.error is not None:
                self.show_error(run.error)
            if self.record is not None:
                self.status.value += preformatted(self.text(self.record))
            self.launch.disabled, self.stop.disabled = False, True

"""Training modes under load imbalance, compared live: loss against time, not against updates."""

import threading
import time
from collections.abc import Callable
from typing import Any

import ipywidgets
import plotly.graph_objects as go
import traitlets

from deeppool import figures
from deeppool.base.arguments import typed
from deeppool.collectives.partial.firing import Mode
from deeppool.collectives.partial.load_imbalance import Delays, drawn, random_ranks, rotating
from deeppool.figures.formatting import preformatted
from deeppool.runs.handle import RunHandle, start
from deeppool.runs.mode_comparison.compare import COMPARED, compare_modes
from deeppool.runs.mode_comparison.record import ModeComparison, ModePoint, ModeTraining
from deeppool.widgets.controls import choice, grid, steps
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.panel import Panel
from deeppool.widgets.run_panel import INTERVAL
from deeppool.widgets.run_row import RunRow

EMPTY = (
    "Nothing has run yet. <b>Train</b> starts the ranks on this machine and trains by each mode in turn; the loss of "
    "rank 0's batches is drawn while they train, and loss and accuracy on other data at the end."
)
IMBALANCES: dict[str, Callable[[int, float], Delays]] = {
    "all ranks, by turns": lambda ranks, longest: rotating(ranks, longest / 8, longest),
    "one random rank": random_ranks,
    "as UCF101's batches": lambda ranks, longest: drawn("ucf101-lstm", scale=longest / 3.2),
}
"""Delays of ranks up to a longest one; the batches of UCF101 differ by up to 3.2 s."""
_SECONDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
_UPDATES = (20, 50, 100, 200, 400, 800)
_RANKS = (2, 3, 4, 6, 8, 16)


class ModeComparisonPanel(Panel):
    """Trains by synchronous, straggler-aware, majority and solo all-reduces, and draws loss against time.

    The record of the last completed comparison is :attr:`record`.
    """

    record: Any = traitlets.Any(None)
    """The last completed comparison, to observe or to link; None: there is none."""

    @typed
    def __init__(self, *, ranks: int = 4, updates: int = 100, longest_delay: float = 0.1) -> None:
        """Lays out the controls; training starts when **Train** is pressed or :meth:`begin` is called.

        Args:
            ranks: initial number of processes.
            updates: initial updates of each training.
            longest_delay: initial longest delay of a rank in a step, in seconds.
        """
        self.task = choice("task", {"digits, small ResNet": "digits", "hyperplane regression": "hyperplane"}, "digits")
        self.imbalance = choice("late ranks", tuple(IMBALANCES), next(iter(IMBALANCES)))
        self.delay = steps("longest delay (s)", _SECONDS, longest_delay, "{:g}".format)
        self.ranks = steps("ranks", _RANKS, ranks)
        self.updates = steps("updates", _UPDATES, updates)
        self.row: RunRow[ModeComparison] = RunRow("Train", self._start, self._finish, self._draw)
        self.status = ipywidgets.HTML(EMPTY)
        self.figure = LiveFigure(figures.loss_over_time([]))
        self._points: dict[Mode, list[ModePoint]] = {}
        self._drawing, self._next_draw = threading.RLock(), 0.0
        controls = grid(self.task, self.imbalance, self.ranks, self.delay, self.updates)
        super().__init__([controls, self.row, self.status, self.figure])
        self.row.connect(self)
        self.on_theme(self._draw)

    def begin(self) -> RunHandle[ModeComparison]:
        """Starts the comparison with the settings of the controls, or returns the one in progress."""
        return self.row.launch()

    @property
    def trainings(self) -> tuple[ModeTraining, ...]:
        """The trainings that are drawn: those of the record, or what is known so far."""
        if self.record is not None:
            trainings: tuple[ModeTraining, ...] = self.record.trainings
            return trainings
        with self._drawing:
            return tuple(ModeTraining(mode, 0, 0, tuple(points)) for mode, points in self._points.items())

    def static(self) -> go.Figure:
        """Returns the figure as it is drawn."""
        return figures.loss_over_time(
            self.trainings, title="Loss against time", subtitle="measured, on ranks of this machine", dark=self.dark
        )

    def _start(self) -> RunHandle[ModeComparison]:
        with self._drawing:
            self.record, self._points = None, {}
            self._draw()
        ranks, delay = self.ranks.value, self.delay.value
        # A rank's compute times of milliseconds would be noise beside the machine's own.
        arguments: dict[str, Any] = {"features": 1024} if self.task.value == "hyperplane" else {"batch": 64}
        self.status.value = ""
        return start(
            compare_modes, self.task.value, IMBALANCES[self.imbalance.value](ranks, delay), modes=COMPARED,
            ranks=ranks, updates=self.updates.value, on_point=self._on_point, **arguments,
        )  # fmt: skip

    def _on_point(self, mode: Mode, seed: int, point: ModePoint) -> None:
        with self._drawing:
            self._points.setdefault(mode, []).append(point)
            if time.monotonic() >= self._next_draw:
                self._draw()
                self._next_draw = time.monotonic() + INTERVAL

    def _finish(self, found: ModeComparison) -> None:
        self.record = found
        self._draw()
        self.status.value = preformatted(str(found))

    def _draw(self) -> None:
        with self._drawing:
            self.figure.draw(self.static())

"""Compares methods of sending gradients on live ranks from a notebook, and shows each repetition as it is measured."""

import html
import threading
from collections.abc import Sequence

import ipywidgets
import plotly.graph_objects as go

from deeppool import figures
from deeppool.errors import RunError
from deeppool.execution.data_parallel.measure import METHODS, measure_transfers
from deeppool.records.measured_transfers import MeasuredTransfers
from deeppool.runs.handle import RunHandle, start
from deeppool.training.training_job import TrainingJob
from deeppool.widgets.panel import Panel
from deeppool.widgets.run_panel import COLOURS

EMPTY = (
    "Nothing has run yet. <b>Launch</b> starts ranks on this machine, measures the network between them, and then "
    "trains the job by every method in turn; iterations are drawn after each repetition."
)


class TransferPanel(Panel):
    """Measures methods as :func:`deeppool.measure_transfers` does; :attr:`record` is the newest record."""

    def __init__(
        self,
        job: TrainingJob,
        *,
        global_batch: int,
        ranks: int = 2,
        methods: Sequence[str] = METHODS,
        repetitions: int = 5,
    ) -> None:
        """Lays out the controls; ranks start when **Launch** is pressed or :meth:`begin` is called.

        Args:
            job: as for :func:`deeppool.measure_transfers`, and so the others.
            global_batch: samples of an update over all ranks.
            ranks: processes that train.
            methods: methods that are selected at first.
            repetitions: times that all methods are measured, which can be changed in the panel.
        """
        self.run: RunHandle[MeasuredTransfers] | None = None
        """The current run, or the last one."""
        self.record: MeasuredTransfers | None = None
        """What was measured so far, or by the last run."""
        self._job, self._batch, self._ranks = job, global_batch, ranks
        self.methods = ipywidgets.SelectMultiple(
            description="methods", options=METHODS, value=tuple(methods), rows=len(METHODS)
        )
        self.repetitions = ipywidgets.BoundedIntText(
            description="repetitions", value=repetitions, min=1, max=max(100, repetitions)
        )
        self.launch = ipywidgets.Button(description="Launch", button_style="primary")
        self.stop = ipywidgets.Button(description="Stop", disabled=True)
        self.bar, self.status = ipywidgets.FloatProgress(max=1.0), ipywidgets.HTML(EMPTY)
        self._drawing = threading.RLock()
        self._controls = (
            ipywidgets.HBox([self.methods, self.repetitions]),
            ipywidgets.HBox([self.launch, self.stop, self.bar]),
            self.status,
        )
        super().__init__(self._controls)
        self.on_click(self.launch, self.begin)
        self.on_click(self.stop, self.end)
        self.on_theme(self._draw)

    def begin(self) -> RunHandle[MeasuredTransfers]:
        """Starts a comparison with the settings of the controls, as the button does.

        Raises:
            RunError: a comparison of this panel is still running.
        """
        if self.run is not None and self.run.state == "running":
            raise RunError("a comparison of this panel is still running (stop it first)")
        self.record = None
        run = self.run = start(
            measure_transfers,
            self._job,
            global_batch=self._batch,
            ranks=self._ranks,
            # In the panel's order: the last one is compared with the others.
            methods=[name for name in METHODS if name in self.methods.value],
            repetitions=self.repetitions.value,
            on_record=self._measured,
        )
        self.launch.disabled, self.stop.disabled = True, False
        run.watch(lambda: self._follow(run))
        return run

    def end(self) -> None:
        """Ends the comparison and all of its processes, as the button does."""
        if self.run is not None:
            self.run.request_cancel()

    def static(self) -> go.Figure | None:
        """Returns the figure of the newest record; None before there is one."""
        return None if self.record is None else figures.transfers(self.record, dark=self.dark)

    def _measured(self, record: MeasuredTransfers) -> None:
        self.record = record
        self._draw()

    def _draw(self) -> None:
        with self._drawing:
            if (figure := self.static()) is not None:
                self.show(*self._controls, go.FigureWidget(figure))

    def _follow(self, run: RunHandle[MeasuredTransfers]) -> None:
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
                self.status.value += f"<pre>{html.escape(str(self.record))}</pre>"
            self.launch.disabled, self.stop.disabled = False, True

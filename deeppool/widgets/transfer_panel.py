"""Compares methods of sending gradients on live ranks."""

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from deeppool import figures
from deeppool.base.arguments import typed
from deeppool.execution.data_parallel.measure import METHODS, measure_transfers
from deeppool.records.measured_transfers import MeasuredTransfers
from deeppool.training.training_job import TrainingJob
from deeppool.widgets.comparison_panel import ComparisonPanel


class TransferPanel(ComparisonPanel[MeasuredTransfers]):
    """Measures methods as :func:`deeppool.measure_transfers` does."""

    @typed
    def __init__(
        self,
        job: TrainingJob,
        *,
        global_batch: int,
        ranks: int = 2,
        methods: Sequence[str] = METHODS,
        repetitions: int = 5,
    ) -> None:
        """Lays out the controls.

        Args:
            job: as for :func:`deeppool.measure_transfers`, and so the others.
            global_batch: samples of an update over all ranks.
            ranks: processes that train.
            methods: methods that are selected at first.
            repetitions: times that all methods are measured, which can be changed in the panel.
        """
        self._job, self._batch, self._ranks = job, global_batch, ranks
        super().__init__(METHODS, methods, repetitions=repetitions, label="methods")

    def comparison(self) -> tuple[Callable[..., MeasuredTransfers], Any, dict[str, Any]]:
        """Returns :func:`deeppool.measure_transfers` of the job."""
        return measure_transfers, self._job, {"global_batch": self._batch, "ranks": self._ranks}

    def figures(self, record: MeasuredTransfers) -> list[go.Figure]:
        """Returns iterations by every method."""
        return [figures.transfers(record, dark=self.dark)]

"""Compares the crossover of jobs with other orders on live ranks."""

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from deeppool import figures
from deeppool.base.arguments import typed
from deeppool.interleaving.crossover.comparison import compare_orders
from deeppool.interleaving.crossover.comparison_record import ORDERS, CrossoverComparison
from deeppool.training.training_job import TrainingJob
from deeppool.widgets.comparison_panel import ComparisonPanel


class OrderPanel(ComparisonPanel[CrossoverComparison]):
    """Measures orders of jobs as :func:`deeppool.compare_orders` does, and draws which job computes and sends when."""

    @typed
    def __init__(self, jobs: Sequence[TrainingJob], *, global_batch: int, ranks: int = 2, repetitions: int = 5) -> None:
        """Lays out the controls.

        Args:
            jobs: as for :func:`deeppool.compare_orders`, and so the others.
            global_batch: samples of an update of every job over all ranks.
            ranks: processes that train.
            repetitions: times that all orders are measured, which can be changed in the panel.
        """
        self._jobs, self._batch, self._ranks = list(jobs), global_batch, ranks
        super().__init__(ORDERS, ORDERS, repetitions=repetitions, label="orders")

    def comparison(self) -> tuple[Callable[..., CrossoverComparison], Any, dict[str, Any]]:
        """Returns :func:`deeppool.compare_orders` of the jobs."""
        return compare_orders, self._jobs, {"global_batch": self._batch, "ranks": self._ranks}

    def figures(self, record: CrossoverComparison) -> list[go.Figure]:
        """Returns the gains over other orders, and a few rounds rank by rank."""
        return [figures.crossover_gain([record], dark=self.dark), figures.crossover(record, dark=self.dark)]

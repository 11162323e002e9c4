"""Compares techniques on one workload on live ranks, and says which one helps and why."""

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets
import plotly.graph_objects as go

from deeppool import figures
from deeppool.advice.record import Advice
from deeppool.advice.verdict import verdicts
from deeppool.base.arguments import typed
from deeppool.planning.plan import Plan
from deeppool.records.measured_ways import MeasuredWays
from deeppool.runs.technique_comparison.compare import compare_techniques
from deeppool.runs.technique_comparison.names import BURST, FIVE_TECHNIQUES, WAYS
from deeppool.training.training_job import TrainingJob
from deeppool.widgets.comparison_panel import ComparisonPanel


class TechniquePanel(ComparisonPanel[MeasuredWays]):
    """Measures ways to train a job as :func:`deeppool.compare_techniques` does, beside their controls."""

    @typed
    def __init__(
        self,
        job: TrainingJob,
        *,
        global_batch: int,
        ranks: int = 2,
        ways: Sequence[str] = FIVE_TECHNIQUES,
        plan: Plan | None = None,
        predicted: Advice | None = None,
        repetitions: int = 5,
    ) -> None:
        """Lays out the controls.

        Args:
            job: as for :func:`deeppool.compare_techniques`, and so the others.
            global_batch: samples of an update over all ranks.
            ranks: processes that train.
            ways: ways that are selected at first; without a plan, burst parallelism is none of them.
            plan: plan that ``burst parallelism`` runs.
            predicted: advice on the same workload, shown beside what is measured, with a verdict on each technique.
            repetitions: times that all ways are measured, which can be changed in the panel.
        """
        self._job, self._batch, self._ranks, self._plan, self._predicted = job, global_batch, ranks, plan, predicted
        self.late = ipywidgets.BoundedFloatText(description="late (s)", value=0.0, min=0.0, max=10.0, step=0.05)
        """Seconds by which one rank, drawn anew for each step, is late in every way."""
        chosen = [name for name in ways if name != BURST or plan is not None]
        super().__init__(WAYS, chosen, repetitions=repetitions)

    def more_controls(self) -> list[ipywidgets.Widget]:
        """Returns the injected delay."""
        return [self.late]

    def comparison(self) -> tuple[Callable[..., MeasuredWays], Any, dict[str, Any]]:
        """Returns :func:`deeppool.compare_techniques` of the job."""
        late = self.late.value
        options = {"global_batch": self._batch, "ranks": self._ranks, "plan": self._plan, "late": late}
        return compare_techniques, self._job, options

    def figures(self, record: MeasuredWays) -> list[go.Figure]:
        """Returns the gains over the baseline, and a round of each way whose spans are recorded."""
        found = [figures.ways(record, self._predicted, dark=self.dark)]
        recorded = [way.timeline for way in record.ways if way.timeline is not None]
        if recorded:
            found.append(figures.timeline(*recorded, title="A round, rank by rank", dark=self.dark))
        return found

    def text(self, record: MeasuredWays) -> str:
        """Returns the record, and the verdicts where there is a prediction."""
        told = [] if self._predicted is None else ["", *map(str, verdicts(self._predicted, record))]
        return "\n".join([str(record), *told])

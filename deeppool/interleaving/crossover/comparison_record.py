"""The record of orders of the same jobs, measured by turns."""

from dataclasses import dataclass
from typing import ClassVar

from deeppool.errors import InvalidValueError
from deeppool.interleaving.crossover.record import CrossoverSpan, check_spans
from deeppool.interleaving.crossover.round_time import JobCosts
from deeppool.records.measured_ways import MeasuredComparison
from deeppool.units import format_count

CROSSOVER, SEQUENTIAL, DATA_PARALLEL, APART, SHIFTED = (
    "crossover",
    "one after the other",
    "data parallel",
    "ranks of their own",
    "shifted",
)
ORDERS = (CROSSOVER, SEQUENTIAL, DATA_PARALLEL, APART, SHIFTED)
"""Names of all orders (:mod:`deeppool.interleaving.crossover.orders`)."""


@dataclass(frozen=True, slots=True)
class CrossoverComparison(MeasuredComparison):
    """Orders of the same jobs on the same ranks, measured interleaved; a round is one step of each job."""

    KIND: ClassVar[str] = "crossover-comparison"

    jobs: tuple[JobCosts, ...]
    """Computing measured beside transfers, communication alone."""
    all_reduce: str
    spans: tuple[CrossoverSpan, ...]
    """Activity of every rank in a few rounds of the crossover."""

    def __post_init__(self) -> None:
        MeasuredComparison.__post_init__(self)
        check_spans(self.spans, self.ranks)
        if not sum(job.compute for job in self.jobs) > 0:
            raise InvalidValueError(f"jobs must compute for some time, got {len(self.jobs)} jobs that do not")
        if CROSSOVER not in (orders := [way.name for way in self.ways]):
            raise InvalidValueError(f"a comparison has the order '{CROSSOVER}', got {orders}")

    @property
    def ratio(self) -> float:
        """Communication / computing, of all jobs together."""
        return sum(job.communication for job in self.jobs) / sum(job.compute for job in self.jobs)

    @property
    def heading(self) -> str:
        """What was measured, and where."""
        return (
            f"{format_count(len(self.jobs), 'job')} on {format_count(self.ranks, 'rank')} of {self.device_name}, "
            f"all-reduce: {self.all_reduce}; "
            f"communication / computing {self.ratio:.2f}"
        )

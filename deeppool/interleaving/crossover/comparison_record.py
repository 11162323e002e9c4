"""The record of orders of the same jobs, measured by turns."""

import statistics
from dataclasses import dataclass
from typing import ClassVar

from deeppool.errors import InvalidValueError
from deeppool.interleaving.crossover.record import CrossoverSpan, check_spans
from deeppool.interleaving.crossover.round_time import JobCosts
from deeppool.records.confidence_interval import check_rounds, format_ratio, median_ratio
from deeppool.units import format_seconds

CROSSOVER, SEQUENTIAL, DATA_PARALLEL, SHIFTED = "crossover", "one after the other", "data parallel", "shifted"
ORDERS = (CROSSOVER, SEQUENTIAL, DATA_PARALLEL, SHIFTED)
"""Names of all orders (:mod:`deeppool.interleaving.crossover.orders`)."""


@dataclass(frozen=True, slots=True)
class OrderTimes:
    """Times of one step of each job in one order."""

    order: str
    seconds: tuple[float, ...]
    """Of each round, on its slowest rank."""
    predicted: float | None
    """By formula, from the measured costs; None: there is no formula."""

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class CrossoverComparison:
    """Orders of the same jobs on the same ranks, measured interleaved."""

    KIND: ClassVar[str] = "crossover-comparison"

    jobs: tuple[JobCosts, ...]
    """Computing measured beside transfers, communication alone."""
    orders: tuple[OrderTimes, ...]
    ranks: int
    device_name: str
    all_reduce: str
    repetitions: int
    """Times that all orders were measured, one after the other."""
    spans: tuple[CrossoverSpan, ...]
    """Activity of every rank in a few rounds of the crossover."""
    date: str
    versions: dict[str, str]

    def __post_init__(self) -> None:
        check_rounds({times.order: times.seconds for times in self.orders}, self.repetitions)
        check_spans(self.spans, self.ranks)
        if not sum(job.compute for job in self.jobs) > 0:
            raise InvalidValueError(f"jobs must compute for some time, got {len(self.jobs)} jobs that do not")
        if CROSSOVER not in (orders := [times.order for times in self.orders]):
            raise InvalidValueError(f"a comparison has the order '{CROSSOVER}', got {orders}")

    def times(self, order: str) -> OrderTimes:
        """Returns the times of an order.

        Raises:
            InvalidValueError: it was not measured.
        """
        found = next((times for times in self.orders if times.order == order), None)
        if found is None:
            raise InvalidValueError(f"'{order}' was not measured (there are {', '.join(x.order for x in self.orders)})")
        return found

    def gain(self, order: str) -> tuple[float, float | None]:
        """Returns how many times as long an order takes as the crossover, and half of the 95 % confidence interval."""
        return median_ratio(self.times(order).seconds, self.times(CROSSOVER).seconds, self.repetitions)

    def __str__(self) -> str:
        ratio = sum(job.communication for job in self.jobs) / sum(job.compute for job in self.jobs)
        lines = [
            f"{len(self.jobs)} jobs on {self.ranks} ranks of {self.device_name}, all-reduce: {self.all_reduce}; "
            f"communication / computing {ratio:.2f}"
        ]
        for times in self.orders:
            said = "" if times.predicted is None else f", formula {format_seconds(times.predicted)}"
            longer = "" if times.order == CROSSOVER else format_ratio(*self.gain(times.order))
            gain = f"; {longer} times the crossover" if longer else ""
            lines.append(f"{times.order}: {format_seconds(times.median)} a round{said}{gain}")
        return "\n".join(lines)

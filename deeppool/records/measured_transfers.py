"""The record of ways to send the gradients of one job, measured by turns."""

import statistics
from dataclasses import dataclass
from typing import ClassVar

from deeppool.base.timeline import Timeline
from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.records.confidence_interval import check_rounds, format_ratio, median_ratio
from deeppool.records.transfer_plan import TransferPlan
from deeppool.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class MeasuredMethod:
    """Iterations by one method."""

    method: str
    seconds: tuple[float, ...]
    """Of every iteration, on its slowest rank; as many from each repetition."""
    transfers_alone: float
    """Seconds of its transfers one after the other while nothing computes, on the slowest rank; median of several."""
    bucket: float | None
    """Bytes of a bucket; None: it has no buckets."""
    plan: TransferPlan | None
    """Its transfers, with predicted times; None where the framework decides by itself."""
    timeline: Timeline | None
    """A measured iteration of rank 0, where the transfers are planned."""

    def __post_init__(self) -> None:
        if not self.seconds or min(self.seconds) <= 0:
            raise InvalidValueError(f"iterations by {self.method} must take some time, got {self.seconds} s")

    @property
    def median(self) -> float:
        """Median of the iterations."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class MeasuredTransfers:
    """Methods of sending the gradients of one job on the same ranks, measured interleaved."""

    KIND: ClassVar[str] = "measured-transfers"

    model: str
    ranks: int
    global_batch: int
    device_name: str
    cluster: Cluster
    """The measured network between the ranks."""
    compute: tuple[float, ...]
    """Seconds of an iteration that sends nothing, on its slowest rank."""
    core_time: float
    """Seconds for which a rank's cores compute for its transfers by the last method; median of several."""
    methods: tuple[MeasuredMethod, ...]
    repetitions: int
    """Times that all methods were measured, one after the other."""
    date: str
    versions: dict[str, str]

    def __post_init__(self) -> None:
        check_rounds({each.method: each.seconds for each in self.methods}, self.repetitions)
        if not self.compute or not self.methods or not min(each.transfers_alone for each in self.methods) > 0:
            raise InvalidValueError(
                "measured transfers have iterations that send nothing, and methods whose transfers take some time, got "
                f"{len(self.compute)} and {[each.transfers_alone for each in self.methods]} s"
            )

    @property
    def compute_time(self) -> float:
        """Median of :attr:`compute`."""
        return statistics.median(self.compute)

    @property
    def bound(self) -> float:
        """Least seconds of an iteration on a rank of one core: max(C + core, M), with the least M of all methods.

        Where cores are idle while the device computes, it is max(C, M).
        """
        return max(self.compute_time + self.core_time, min(each.transfers_alone for each in self.methods))

    def times(self, method: str) -> MeasuredMethod:
        """Returns the iterations of a method.

        Raises:
            InvalidValueError: it was not measured.
        """
        found = next((each for each in self.methods if each.method == method), None)
        if found is None:
            raise InvalidValueError(
                f"'{method}' was not measured (there are {', '.join(x.method for x in self.methods)})"
            )
        return found

    def hidden_share(self, method: str) -> float:
        """Returns the share of a method's transfers behind which a rank computes: 1 - (iteration - C) / M, 0 to 1."""
        found = self.times(method)
        return max(0.0, min(1.0, 1 - (found.median - self.compute_time) / found.transfers_alone))

    def speedup(self, over: str, method: str | None = None) -> tuple[float, float | None]:
        """Returns how many times as long an iteration takes by another method.

        Args:
            over: the other method.
            method: the method. Default: the last one.

        Returns:
            The ratio of the medians, and half of its 95 % confidence interval, which needs two repetitions.
        """
        ours = (self.methods[-1] if method is None else self.times(method)).seconds
        return median_ratio(self.times(over).seconds, ours, self.repetitions)

    def __str__(self) -> str:
        last = self.methods[-1]
        lines = [
            f"{self.model}, batch {self.global_batch} on {self.ranks} ranks of {self.device_name}: "
            f"{format_seconds(self.compute_time)} of computing, {format_seconds(last.transfers_alone)} of transfers "
            f"by {last.method}; bound {format_seconds(self.bound)}"
        ]
        for each in self.methods:
            bucket = "" if each.bucket is None else f", buckets of {format_bytes(each.bucket)}"
            predicted = "" if each.plan is None else f", predicted {format_seconds(each.plan.iteration_time)}"
            gain = "" if each is last else f"; {format_ratio(*self.speedup(each.method))} times {last.method}"
            lines.append(
                f"{each.method:18s}{format_seconds(each.median):>9s} an iteration, "
                f"{self.hidden_share(each.method):.0%} of {format_seconds(each.transfers_alone)} of transfers "
                f"hidden{bucket}{predicted}{gain}"
            )
        return "\n  ".join(lines)

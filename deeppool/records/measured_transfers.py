"""The record of ways to send the gradients of one job, measured by turns."""

import statistics
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import AliasChoices, Field

from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.records.measured_ways import MeasuredComparison, MeasuredWay
from deeppool.records.transfer_plan import TransferPlan
from deeppool.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMethod(MeasuredWay):
    """Iterations by one method; the timeline is that of rank 0, where the transfers are planned."""

    transfers_alone: float | None
    """Seconds of its transfers one after the other while nothing computes, on the slowest rank; median of several.
    None where fewer ranks train, whose computing beside them is not known."""
    bucket: float | None = None
    """Bytes of a bucket; None: it has no buckets."""
    plan: TransferPlan | None = None
    """Its transfers, with predicted times; None where the framework decides by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTransfers(MeasuredComparison):
    """Methods of sending the gradients of one job on the same ranks, measured interleaved."""

    KIND: ClassVar[str] = "measured-transfers"

    model: str
    global_batch: int
    cluster: Cluster
    """The measured network between the ranks."""
    compute: tuple[float, ...]
    """Seconds of an iteration that sends nothing, on its slowest rank."""
    core_time: float
    """Seconds for which a rank's cores compute for its transfers by the last method; median of several."""
    ways: Annotated[tuple[MeasuredMethod, ...], Field(validation_alias=AliasChoices("ways", "methods"))]

    def __post_init__(self) -> None:
        MeasuredComparison.__post_init__(self)
        if not self.compute or any(
            each.transfers_alone is not None and each.transfers_alone <= 0 for each in self.ways
        ):
            raise InvalidValueError(
                "measured transfers have iterations that send nothing, and methods whose transfers take some time, got "
                f"{len(self.compute)} and {[each.transfers_alone for each in self.ways]} s"
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
        transfers = [each.transfers_alone for each in self.ways if each.transfers_alone]
        return max(self.compute_time + self.core_time, min(transfers, default=0.0))

    def way(self, name: str) -> MeasuredMethod:
        """Returns a method; see :meth:`MeasuredComparison.way`."""
        found = MeasuredComparison.way(self, name)
        assert isinstance(found, MeasuredMethod)
        return found

    def hidden_share(self, method: str) -> float:
        """Returns the share of a method's transfers behind which a rank computes: 1 - (iteration - C) / M, 0 to 1."""
        found = self.way(method)
        if found.transfers_alone is None:
            return 0.0
        return max(0.0, min(1.0, 1 - (found.median - self.compute_time) / found.transfers_alone))

    @property
    def heading(self) -> str:
        """What was measured, and where."""
        last = self.ways[-1]
        return (
            f"{self.model}, batch {self.global_batch} on {self.ranks} ranks of {self.device_name}: "
            f"{format_seconds(self.compute_time)} of computing, {format_seconds(last.transfers_alone or 0.0)} of "
            f"transfers by {last.name}; bound {format_seconds(self.bound)}"
        )

    def about(self, way: MeasuredWay) -> str:
        """Returns what else the text says of a method."""
        method = self.way(way.name)
        told = "" if method.bucket is None else f", buckets of {format_bytes(method.bucket)}"
        if method.transfers_alone is not None:
            hidden = f"{self.hidden_share(way.name):.0%} of {format_seconds(method.transfers_alone)}"
            told = f"; {hidden} of transfers hidden{told}"
        return told + MeasuredComparison.about(self, way)

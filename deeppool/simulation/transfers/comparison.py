"""The record of ways to send the gradients of one model, simulated."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from deeppool.cluster.cluster import Cluster
from deeppool.collectives.transfer_methods import CARAMEL
from deeppool.errors import InvalidValueError
from deeppool.records.transfer_plan import TransferPlan
from deeppool.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class MethodTransfers:
    """Transfers of an iteration by one method."""

    method: str
    plan: TransferPlan

    def __str__(self) -> str:
        plan = self.plan
        bucket = "" if not plan.size_bound else f" (together up to {format_bytes(plan.size_bound)})"
        patterns = ", ".join(dict.fromkeys(transfer.pattern for transfer in plan.transfers))
        return (
            f"{self.method:18s}{format_seconds(plan.iteration_time):>9s} an iteration, utilisation "
            f"{plan.utilisation:4.0%}, {format_seconds(plan.transfer_time)} of communication, of which "
            f"{plan.hidden_share:.0%} hidden; {len(plan.transfers)} transfers{bucket} by {patterns}"
        )


@dataclass(frozen=True, slots=True)
class TransferComparison:
    """Simulated iterations of data-parallel training that differ in how gradients are sent."""

    KIND: ClassVar[str] = "transfer-comparison"

    model: str
    cluster: Cluster
    global_batch: int
    servers: int
    """Ranks that hold the parameters of ``parameter server``."""
    device_name: str
    provenance: Literal["measured", "estimated"]
    """Provenance of the layer times."""
    methods: tuple[MethodTransfers, ...]
    caveats: tuple[str, ...] = ()
    """Uncertainties of the layer times, a sentence each."""

    def __post_init__(self) -> None:
        if not self.methods:
            raise InvalidValueError("a comparison of transfers needs a method, got none")

    @property
    def compute_time(self) -> float:
        """Seconds of the forward, backward and update of an iteration: no method is faster."""
        return self.methods[0].plan.compute_time

    def plan(self, method: str) -> TransferPlan:
        """Returns the transfers of a method.

        Raises:
            InvalidValueError: it was not simulated.
        """
        found = next((each.plan for each in self.methods if each.method == method), None)
        if found is None:
            known = ", ".join(each.method for each in self.methods)
            raise InvalidValueError(f"'{method}' was not simulated (there are {known})")
        return found

    def speedup(self, over: str, method: str = CARAMEL) -> float:
        """Returns how many times as long an iteration takes by another method."""
        return self.plan(over).iteration_time / self.plan(method).iteration_time

    def __str__(self) -> str:
        heading = (
            f"{self.model}, batch {self.global_batch} on {self.cluster.gpus} GPUs ({self.cluster.name}), predicted "
            f"from {self.provenance} layer times: {format_seconds(self.compute_time)} of computing"
        )
        return "\n  ".join([heading, *map(str, self.methods), *(f"caution: {each}" for each in self.caveats)])

"""Plan: which GPUs compute each layer of one iteration, and what that is predicted to cost."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import NetworkModel
from deeppool.device.common import Precision
from deeppool.errors import InvalidValueError
from deeppool.graph.layer import Granularity, Input
from deeppool.graph.series_parallel import Series, decompose
from deeppool.planning.evaluate.memory import MemoryUse, Optimizer
from deeppool.units import format_bytes, format_seconds

LimitScope = Literal["layer", "iteration"]
GpuCounts = Literal["powers", "all"]
Search = Literal["exact", "published"]


@dataclass(frozen=True, slots=True)
class Alternative:
    """What would happen if one layer alone took another GPU count."""

    gpu_count: int
    iteration_time_change: float
    """Seconds; positive is slower."""
    amplification: float
    """Of the layer, on that many GPUs."""
    over_limit: tuple[str, ...]
    """Layers that would break the amplification limit: this one, or those that read it."""


@dataclass(frozen=True, slots=True)
class LayerAssignment:
    """One layer of a plan. Times are seconds of one iteration."""

    name: str
    predecessors: tuple[int, ...]
    """Layers that it reads, by their index in the plan."""
    gpu_count: int
    gpus: tuple[int, ...]
    """The layer's shard of the global batch on each is ceil(global_batch / gpu_count) samples or one less."""
    time: float
    """reshard + forward + backward + sync."""
    amplification: float
    """time x gpu_count / (time of the layer on one GPU)."""
    reshard: float
    """Activations in and their gradients back out, over all predecessors; half of it in each pass."""
    forward: float
    backward: float
    sync: float
    """All-reduce of the layer's gradients, hidden or not."""
    single_gpu_time: float
    """Forward and backward of the global batch on one GPU."""
    alternatives: tuple[Alternative, ...] = ()
    """One per other GPU count that was searched; none in a plan that a replan made in passing."""


@dataclass(frozen=True, slots=True)
class PublishedClaim:
    """What the published search believes of its own plan; what the plan costs as it runs stands in the plan.

    Kept beside the plan's own numbers because the two differ where the model branches: the paper lets branches
    run at the same time on different GPUs (DeepPool, section 4.2) and does not add these GPUs up.
    """

    iteration_time: float
    gpus: int
    """It needs at once: a branch beside others has a set of its own, as large as its largest layer."""


@dataclass(frozen=True)
class Plan:
    """A burst-parallel plan of one iteration."""

    KIND: ClassVar[str] = "plan"

    model: str
    input_shape: tuple[int, ...]
    """Of one sample of the first input, without the batch."""
    parameter_bytes: int
    graph_fingerprint: str
    profile_fingerprint: str
    device: str
    device_name: str
    precision: Precision
    provenance: Literal["measured", "estimated"]
    """Of the layer times it leans on; network times are always computed from the cluster's links."""
    extrapolated_layers: tuple[str, ...]
    """Layers whose time, on their GPUs or on one, lies above the profile's largest batch."""
    cluster: Cluster
    network_model: NetworkModel
    gpu_counts: tuple[int, ...]
    """That were searched; the claim of optimality is about them."""
    gpus: int
    global_batch: int
    amplification_limit: float | None
    """None: no limit."""
    limit_scope: LimitScope
    layers: tuple[LayerAssignment, ...]
    iteration_time: float
    data_parallel_iteration_time: float
    single_gpu_iteration_time: float
    gpu_seconds: float
    amplification: float
    exempt_layers: tuple[str, ...]
    """Layers that no choice brings under the limit."""
    optimality: str
    """``exact``, or ``bound x``: at most x times the optimum, or ``heuristic``: nothing is claimed."""
    search_time: float
    search: Search = "exact"
    over_limit: tuple[str, ...] = ()
    """Layers that break the limit; the exact search leaves none."""
    claim: PublishedClaim | None = None
    """Of the published search about itself."""
    optimizer: Optimizer = "momentum"
    """Whose state ``memory`` counts."""
    memory: tuple[MemoryUse, ...] = ()
    """Per group of GPUs that hold the same, the fullest first; empty where the profile lacks what layers keep."""
    overlap_sync: bool = False
    """All-reduces overlap the backward pass: the iteration time counts what they stick out, GPU-seconds what no
    computing or transfer hides. False: everything waits for them."""
    inputs: tuple[Input, ...] = ()
    """All of the model's; one of float32 and ``input_shape`` unless given."""
    granularity: Granularity = "module"
    """What a layer is: a run captures the model in the same way."""
    caveats: tuple[str, ...] = ()
    """What is uncertain about the layer times it leans on, a sentence each; see :mod:`deeppool.profiling.iteration_check`."""
    origin: Any = field(default=None, compare=False, repr=False)
    """The CapturedModel behind the profile, in the process that made it; never saved."""

    def __post_init__(self) -> None:
        if not self.inputs:
            object.__setattr__(self, "inputs", (Input("", self.input_shape),))
        # A deep model has few distinct sets, and on a thousand GPUs they are long.
        fitting = {x for x in {layer.gpus for layer in self.layers} if x and 0 <= min(x) <= max(x) < self.gpus}
        for index, layer in enumerate(self.layers):
            if not all(0 <= source < index for source in layer.predecessors):
                raise InvalidValueError(
                    f"layer '{layer.name}', number {index}, has predecessors {list(layer.predecessors)}, "
                    "expected earlier layers"
                )
            if layer.gpu_count != len(layer.gpus) or layer.gpus not in fitting:
                raise InvalidValueError(
                    f"layer '{layer.name}' has gpus {list(layer.gpus)}, expected {layer.gpu_count} of 0…{self.gpus - 1}"
                )

    @property
    def speedup(self) -> float:
        """Over one GPU."""
        return self.single_gpu_iteration_time / self.iteration_time

    @property
    def gpu_sets(self) -> tuple[tuple[int, ...], ...]:
        """Per layer the GPUs that compute it."""
        return tuple(layer.gpus for layer in self.layers)

    @property
    def tree(self) -> Series:
        """The layers as chains and branches; what runs side by side follows from it and the GPU sets."""
        return decompose([layer.predecessors for layer in self.layers])

    def explain(self) -> str:
        """Why each layer got its GPUs: a table with the price of the neighbouring counts."""
        from deeppool.planning.report.explain import explain

        return explain(self)

    def explain_memory(self) -> str:
        """What each GPU holds at the peak of an iteration, a line per group of equal ones."""
        if not self.memory:
            return "memory is unknown: the profile does not say what layers keep for the backward (profile again)"
        known = self.cluster.memory
        of = "" if known is None else f" of {format_bytes(known)}"
        return "\n".join([f"memory{of} with optimizer {self.optimizer}:", *(f"  {use}" for use in self.memory)])

    def __str__(self) -> str:
        limit = "no limit" if self.amplification_limit is None else f"limit {self.amplification_limit:g}"
        overlap = "all-reduces overlapping the backward pass, " if self.overlap_sync else ""
        text = (
            f"{self.model}, batch {self.global_batch} on {self.gpus} GPUs ({self.cluster.name}), {limit}: "
            f"{format_seconds(self.iteration_time)} an iteration "
            f"({self.speedup:.2f}x one GPU; data parallel {format_seconds(self.data_parallel_iteration_time)}), "
            f"amplification {self.amplification:.2f}, {overlap}{self.optimality}"
        )
        if self.claim is not None:
            text += (
                f"; the published search claims {format_seconds(self.claim.iteration_time)} "
                f"on {self.claim.gpus} GPUs at once, and {len(self.over_limit)} of {len(self.layers)} layers "
                "are over the limit"
            )
        if self.provenance == "estimated":
            text += f"; layer times estimated for {self.device_name}"
        return "; caution: ".join([text, *self.caveats])

"""Plan: which GPUs compute each layer of one iteration, and what that is predicted to cost."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from deeppool.cluster import Cluster
from deeppool.costs.communication import NetworkModel
from deeppool.errors import InvalidValueError
from deeppool.graph.regions import Series, decompose
from deeppool.units import format_seconds

LimitScope = Literal["layer", "iteration"]
GpuCounts = Literal["powers", "all"]


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


@dataclass(frozen=True)
class Plan:
    """A burst-parallel plan of one iteration."""

    KIND: ClassVar[str] = "plan"

    model: str
    input_shape: tuple[int, ...]
    parameter_bytes: int
    graph_fingerprint: str
    profile_fingerprint: str
    device: str
    device_name: str
    precision: Literal["fp32", "bf16", "fp16"]
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
    """``exact``, or ``bound x``: at most x times the optimum."""
    search_time: float
    overlap_sync: bool = False
    """All-reduces overlap the backward pass: the iteration time counts what they stick out, GPU-seconds what no
    computing or transfer hides. False: everything waits for them."""
    origin: Any = field(default=None, compare=False, repr=False)
    """The CapturedModel behind the profile, in the process that made it; never saved."""

    def __post_init__(self) -> None:
        for index, layer in enumerate(self.layers):
            if not all(0 <= source < index for source in layer.predecessors):
                raise InvalidValueError(
                    f"layer '{layer.name}', number {index}, has predecessors {list(layer.predecessors)}, "
                    "expected earlier layers"
                )
            if layer.gpu_count != len(layer.gpus) or not all(0 <= gpu < self.gpus for gpu in layer.gpus):
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
        from deeppool.planning.explain import explain

        return explain(self)

    def __str__(self) -> str:
        limit = "no limit" if self.amplification_limit is None else f"limit {self.amplification_limit:g}"
        overlap = "all-reduces overlapping the backward pass, " if self.overlap_sync else ""
        return (
            f"{self.model}, batch {self.global_batch} on {self.gpus} GPUs ({self.cluster.name}), {limit}: "
            f"{format_seconds(self.iteration_time)} an iteration "
            f"({self.speedup:.2f}x one GPU; data parallel {format_seconds(self.data_parallel_iteration_time)}), "
            f"amplification {self.amplification:.2f}, {overlap}{self.optimality}"
        )

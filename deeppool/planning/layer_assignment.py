"""LayerAssignment: the GPUs and predicted times of one layer of a plan, and the cost of other GPU counts."""

from dataclasses import dataclass

WHOLE_ITERATION = "the whole iteration"
"""Name used in place of a layer's where a limit on the iteration is exceeded."""


@dataclass(frozen=True, slots=True)
class AlternativeCost:
    """Predicted effect of another GPU count for one layer, all other layers unchanged."""

    gpu_count: int
    iteration_time_change: float
    """Seconds against the plan; positive is slower. Includes the transfers to layers that read this one."""
    amplification: float
    """Amplification of the layer on that many GPUs."""
    over_limit: tuple[str, ...]
    """Layers that would exceed the amplification limit: this one, or those that read it."""


@dataclass(frozen=True, slots=True)
class LayerAssignment:
    """GPUs and predicted times of one layer of a plan. Times are seconds of one iteration."""

    name: str
    predecessors: tuple[int, ...]
    """Indices in the plan of the layers that it reads."""
    gpu_count: int
    gpus: tuple[int, ...]
    """GPUs that compute it, each ceil(global_batch / gpu_count) samples of the global batch or one less."""
    time: float
    """Seconds of the layer: reshard + forward + backward + sync."""
    amplification: float
    """GPU-seconds relative to one GPU: time x gpu_count / (time of the layer on one GPU)."""
    reshard: float
    """Seconds of transfers of activations in and of their gradients back, over all predecessors; half in each pass."""
    forward: float
    backward: float
    sync: float
    """Seconds of the all-reduce of the layer's gradients, hidden or not."""
    single_gpu_time: float
    """Seconds of forward and backward of the global batch on one GPU."""
    alternatives: tuple[AlternativeCost, ...] = ()
    """Costs of the other GPU counts that were searched; empty in the plans of a replan, which leaves them out."""

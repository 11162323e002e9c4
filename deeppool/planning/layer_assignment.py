"""LayerAssignment: the GPUs and predicted times of one layer of a plan, and the cost of other GPU counts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from deeppool.errors import InvalidValueError

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
    reshard: float | None = None
    """Seconds of the layer's transfers on that many GPUs; None: in a file of an earlier version."""
    sync: float | None = None
    """Seconds of the all-reduce of its gradients; None: in a file of an earlier version."""

    def __post_init__(self) -> None:
        if self.gpu_count < 1:
            raise InvalidValueError(f"an alternative is on at least 1 GPU, got {self.gpu_count}")


Alternatives = tuple[AlternativeCost, ...]


@dataclass(frozen=True, slots=True)
class _Deferred:
    """Alternatives that are computed when they are first read."""

    compute: Callable[[], Alternatives]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles what it computes, not all that this needs."""
        return tuple, (self.compute(),)


def deferred(compute: Callable[[], Alternatives]) -> Alternatives:
    """Returns a value for :attr:`LayerAssignment.alternatives` that is computed when the field is first read."""
    return cast(Alternatives, _Deferred(compute))


class _AlternativesField:
    """Descriptor of a field of alternatives that may be deferred."""

    def __get__(self, layer: "LayerAssignment | None", owner: type) -> Alternatives:
        if layer is None:
            return ()
        value = vars(layer)["alternatives"]
        if isinstance(value, _Deferred):
            value = vars(layer)["alternatives"] = value.compute()
        return cast(Alternatives, value)

    def __set__(self, layer: "LayerAssignment", value: Alternatives) -> None:
        vars(layer)["alternatives"] = value


# Without slots, since a slot would replace the descriptor.
@dataclass(frozen=True)
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
    """Seconds of the backward, with the copies of its gradients into buckets where these were measured."""
    sync: float
    """Seconds of the all-reduce of the layer's gradients by themselves, hidden or not."""
    single_gpu_time: float
    """Seconds of forward and backward of the global batch on one GPU."""
    alternatives: Alternatives = _AlternativesField()  # type: ignore[assignment]
    """Costs of the other GPU counts that were searched, computed when they are first read; empty in the plans of a
    replan, which leaves them out."""
    all_reduce: float = -1.0
    """Seconds of the all-reduce that starts after its backward: of the bucket that its gradients complete where
    all-reduces overlap the backward pass, else of its own gradients. Unless given it is ``sync``."""

    update: float = 0.0
    """Seconds of the update of its parameters on each of its GPUs, not part of ``time``; 0 in the paper's model and in
    plans of earlier versions."""
    later_users: tuple[int, ...] = ()
    """Indices of later layers that use some of its parameters, whose GPUs sum and update these, too; none in the
    paper's model and in plans of earlier versions."""

    def __post_init__(self) -> None:
        if self.all_reduce < 0:
            object.__setattr__(self, "all_reduce", self.sync)

    def on(self, gpus: tuple[int, ...]) -> "LayerAssignment":
        """Returns the same layer on other GPUs, as many; alternatives are still computed when they are first read."""
        return replace(self, gpus=gpus, alternatives=vars(self)["alternatives"])

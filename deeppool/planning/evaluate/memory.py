"""Memory of each GPU at the peak of an iteration under a plan.

The peak lies between forward and backward. A GPU then holds, of every layer that it computes, the parameters,
their gradients and the optimizer's state, the activations that the forward kept of its shard, and the copies of
inputs that came from other GPUs. That is a little more than the sum at any instant, since gradients appear while
activations are freed: the margin covers the gradients of activations. Not counted: buffers and frozen parameters,
workspace of kernels, the CUDA context, fragmentation of the allocator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from deeppool.device.protocol import AUTOCAST
from deeppool.errors import InvalidValueError
from deeppool.graph.layer import LayerGraph
from deeppool.planning.evaluate.gpu_sets import GpuSet
from deeppool.profiling.table import Profile
from deeppool.units import format_bytes

Optimizer = Literal["sgd", "momentum", "adam", "adamw"]
OPTIMIZER_COPIES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Values that an optimizer keeps per parameter, of the parameter's own width."""
NORM = 16
"""Order p of the p-norm of :meth:`MemoryModel.size`."""
HEAVIEST = 5
"""Number of layers named in a record."""

Integers = NDArray[np.int64]
GpuSets = Sequence[GpuSet]
"""GPUs that compute each layer."""


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Bytes of one layer on one GPU."""

    name: str
    batch: int
    """Samples of its shard there."""
    parameters: int
    """Bytes of parameters, gradients and optimizer state; tied parameters count for the first layer that uses them."""
    activations: int
    received: int
    total: int

    def __str__(self) -> str:
        return f"{self.name} {format_bytes(self.total)} at per-GPU batch {self.batch}"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes in use at the peak on each GPU of a group with equal contents."""

    gpus: tuple[int, ...]
    parameters: int
    """Bytes of parameters with gradients and optimizer state, and of their 16-bit copies under autocast."""
    gradients: int
    optimizer_state: int
    activations: int
    """Bytes of activations that the forward keeps for the backward."""
    received: int
    """Bytes of copies of inputs from layers on other GPU sets."""
    total: int
    heaviest: tuple[LayerMemory, ...]
    """The largest layers, descending."""

    def __str__(self) -> str:
        parts = ("parameters", "gradients", "optimizer_state", "activations", "received")
        shown = [
            f"{name.replace('_', ' ')} {format_bytes(getattr(self, name))}" for name in parts if getattr(self, name)
        ]
        if not shown:
            return f"{gpu_names(self.gpus)}: nothing"
        most = ", ".join(map(str, self.heaviest[:3]))
        return f"{gpu_names(self.gpus)}: {format_bytes(self.total)} ({', '.join(shown)}); most: {most}"


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Computes memory from the GPUs of each layer; holds all else that memory depends on."""

    graph: LayerGraph
    global_batch: int
    optimizer: Optimizer
    autocast: bool

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZER_COPIES:
            raise InvalidValueError(
                f"optimizer is '{self.optimizer}', expected one of {', '.join(OPTIMIZER_COPIES)} (choose "
                "the one with as much state per parameter as yours)"
            )

    @property
    def known(self) -> bool:
        """Whether the graph has activation sizes; one captured by an older version does not."""
        return all(layer.activation_bytes is not None for layer in self.graph.layers)

    @property
    def activations_per_sample(self) -> Integers:
        """(L,) bytes."""
        layers = self.graph.layers
        kept = [layer.autocast_activation_bytes if self.autocast else layer.activation_bytes for layer in layers]
        return np.array([size or 0 for size in kept], dtype=np.int64)

    def state(self, parameter_bytes: int) -> int:
        """Returns the bytes of parameters with their gradients and optimizer state."""
        return sum(self._state_parts(parameter_bytes))

    def held(self, gpu_sets: GpuSets, gpus: int) -> Integers:
        """Returns the bytes on each of some GPUs."""
        return _GpuContents(self, gpu_sets, gpus).total

    def peak(self, gpu_sets: GpuSets) -> int:
        """Returns the bytes on the GPU that holds most."""
        return int(self.held(gpu_sets, 1 + max(map(max, _distinct(gpu_sets)[0]))).max())

    def size(self, gpu_sets: GpuSets, capacity: int) -> float:
        """Returns the p-norm of the GPUs' bytes, near to the largest one, and less where any is less; 0 if all fit."""
        total = _GpuContents(self, gpu_sets, 1 + max(map(max, _distinct(gpu_sets)[0]))).total
        most = float(total.max())
        return most * float(((total / most) ** NORM).sum()) ** (1 / NORM) if most > capacity else 0.0

    def replica(self, gpus: int) -> int | None:
        """Returns the bytes on each of some GPUs that hold all layers and share the batch; None where unknown."""
        if not self.known:
            return None
        return -(-self.global_batch // gpus) * int(self.activations_per_sample.sum()) + self._state_of_all

    def samples_in(self, capacity: float) -> int:
        """Returns the largest per-GPU batch at which a GPU of some bytes holds all layers; at most the global batch."""
        per_sample, room = int(self.activations_per_sample.sum()), capacity - self._state_of_all
        if room < 0:
            return 0
        return min(self.global_batch, int(room // per_sample)) if per_sample else self.global_batch

    def fits(self, gpu_sets: GpuSets, capacity: float | None) -> bool:
        """Whether no GPU holds more bytes than its capacity; true where either is unknown."""
        return capacity is None or not self.known or self.peak(gpu_sets) <= capacity

    def peaks_in_sequence(self, gpu_counts: Integers) -> Integers:
        """Returns the bytes on GPU 0, which holds most, of plans whose every layer starts on it.

        Args:
            gpu_counts: (plans, L).
        """
        shards = -(-self.global_batch // gpu_counts)
        total = shards @ self.activations_per_sample
        for index, layer in enumerate(self.graph.layers):
            for source, size in zip(layer.predecessors, layer.input_bytes, strict=True):
                moved = gpu_counts[:, source] != gpu_counts[:, index]
                total += np.where(moved, size * shards[:, index], 0)
        peaks: Integers = total + self._state_of_all
        return peaks

    def use(self, gpu_sets: GpuSets, gpus: int) -> tuple[MemoryUse, ...]:
        """Returns one record per group of GPUs with the same shards of the same layers, the fullest first."""
        contents = _GpuContents(self, gpu_sets, gpus)
        found = []
        for members in sorted(contents.groups(), key=lambda group: (-contents.total[group[0]], group[0])):
            gpu = int(members[0])
            parameters, gradients, state = self._state_parts(int(contents.parameters[gpu]))
            found.append(
                MemoryUse(
                    gpus=tuple(members.tolist()),
                    parameters=parameters,
                    gradients=gradients,
                    optimizer_state=state,
                    activations=int(contents.activations[gpu]),
                    received=int(contents.received[gpu]),
                    total=int(contents.total[gpu]),
                    heaviest=contents.heaviest(gpu),
                )
            )
        return tuple(found)

    @property
    def _state_of_all(self) -> int:
        """Bytes of all parameters with their gradients and optimizer state."""
        held = sum({layer.parameters: layer.parameter_bytes for layer in self.graph.layers}.values())
        return self.state(min(held, self.graph.parameter_bytes))

    def _state_parts(self, parameter_bytes: int) -> tuple[int, int, int]:
        # Parameters are fp32 in any precision; autocast keeps a copy of half the width through the iteration.
        copies = parameter_bytes // 2 if self.autocast else 0
        return parameter_bytes + copies, parameter_bytes, OPTIMIZER_COPIES[self.optimizer] * parameter_bytes


def memory_model(profile: Profile, global_batch: int, optimizer: Optimizer = "momentum") -> MemoryModel:
    """Returns the memory model of a profiled graph at a global batch."""
    return MemoryModel(profile.graph, global_batch, optimizer, autocast=profile.precision in AUTOCAST)


class _GpuContents:
    """Bytes on every GPU, for layers on their GPU sets."""

    def __init__(self, model: MemoryModel, gpu_sets: GpuSets, gpus: int) -> None:
        self.model = model
        distinct, self.rows = _distinct(gpu_sets)
        self.shards = np.zeros((len(distinct), gpus), dtype=np.int64)
        """(set, GPU) samples."""
        for row, members in enumerate(distinct):
            smaller, larger = divmod(model.global_batch, len(members))
            self.shards[row, list(members)] = smaller + (np.arange(len(members)) < larger)
        self.kept_per_sample = model.activations_per_sample
        layers = model.graph.layers
        self.received_per_sample = np.array([self._received(index) for index in range(len(layers))], dtype=np.int64)
        self.activations = self._on_gpus(self.kept_per_sample)
        self.received = self._on_gpus(self.received_per_sample)
        self.parameters = self._parameters()
        state = {size: model.state(size) for size in set(self.parameters.tolist())}
        self.total = np.array([state[size] for size in self.parameters.tolist()]) + self.activations + self.received

    def _received(self, index: int) -> int:
        """Returns the bytes per sample of a layer's received inputs; an output that two layers read counts twice."""
        layer = self.model.graph.layers[index]
        edges = zip(layer.predecessors, layer.input_bytes, strict=True)
        return sum(size for source, size in edges if self.rows[source] != self.rows[index])

    def _on_gpus(self, per_sample: Integers) -> Integers:
        per_set = np.zeros(len(self.shards), dtype=np.int64)
        np.add.at(per_set, self.rows, per_sample)
        total: Integers = per_set @ self.shards
        return total

    def _parameters(self) -> Integers:
        """Returns the bytes of parameters per GPU; tied parameters once on each."""
        users: dict[tuple[str, ...], tuple[int, set[int]]] = {}
        for row, layer in zip(self.rows, self.model.graph.layers, strict=True):
            users.setdefault(layer.parameters, (layer.parameter_bytes, set()))[1].add(row)
        together: dict[tuple[int, ...], int] = {}
        for size, rows in users.values():
            together[tuple(sorted(rows))] = together.get(tuple(sorted(rows)), 0) + size
        found = np.zeros(self.shards.shape[1], dtype=np.int64)
        for sets, size in together.items():
            found[self.shards[list(sets)].any(axis=0)] += size
        # Layers that share some of their parameters and not all count in full here, but no GPU holds more than all.
        return np.minimum(found, self.model.graph.parameter_bytes)

    def groups(self) -> list[NDArray[np.intp]]:
        """Returns the groups of GPUs with the same shards of the same layers."""
        label = np.zeros(self.shards.shape[1], dtype=np.int64)
        for shard in self.shards:
            # A GPU has the smaller shard of a set, the larger one, or none.
            kind = np.unique(shard, return_inverse=True)[1]
            label = np.unique(3 * label + kind, return_inverse=True)[1]
        return [np.flatnonzero(label == value) for value in range(label.max() + 1)]

    def heaviest(self, gpu: int) -> tuple[LayerMemory, ...]:
        """Returns the largest layers on a GPU, descending."""
        seen: set[tuple[str, ...]] = set()
        found = []
        for index, (layer, row) in enumerate(zip(self.model.graph.layers, self.rows, strict=True)):
            batch = int(self.shards[row, gpu])
            if not batch:
                continue
            parameters = 0 if layer.parameters in seen else self.model.state(layer.parameter_bytes)
            seen.add(layer.parameters)
            activations, received = (
                int(self.kept_per_sample[index]) * batch,
                int(self.received_per_sample[index]) * batch,
            )
            total = parameters + activations + received
            found.append(LayerMemory(layer.name, batch, parameters, activations, received, total))
        return tuple(sorted(found, key=lambda layer: -layer.total)[:HEAVIEST])


def _distinct(gpu_sets: GpuSets) -> tuple[list[GpuSet], list[int]]:
    """Returns the distinct GPU sets, and per layer the index of its own."""
    # A set of many GPUs is long to compare, and layers on the same GPUs mostly share one tuple.
    by_object = {id(members): members for members in gpu_sets}
    order = {members: row for row, members in enumerate(dict.fromkeys(by_object.values()))}
    row_of = {key: order[members] for key, members in by_object.items()}
    return list(order), [row_of[id(members)] for members in gpu_sets]


def gpu_names(gpus: tuple[int, ...]) -> str:
    """Returns ``GPU 0``, ``GPUs 0-3`` or ``GPUs 0, 2``; of many only the first."""
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    if gpus[-1] - gpus[0] == len(gpus) - 1:
        return f"GPUs {gpus[0]}-{gpus[-1]}"
    shown = ", ".join(map(str, gpus[:4]))
    return f"GPUs {shown}" if len(gpus) <= 4 else f"GPUs {shown} and {len(gpus) - 4} more"

"""Layers and their graph, as plain records."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from deeppool.errors import InvalidValueError
from deeppool.units import format_bytes, format_count

Dtype = Literal["float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
MAXIMUM_LAYERS = 10_000
"""Most layers of a graph: more than any model has by operator; a larger file would occupy the planner for hours."""
Granularity = Literal["operator", "module", "block"]
"""Size of a layer: an operator, a module with what follows it, or a block of modules; see ``grouping``."""


@dataclass(frozen=True, slots=True)
class Input:
    """Input tensor of a model."""

    name: str
    """Name of the argument of ``forward``; empty: the first one."""
    shape: tuple[int, ...]
    """Shape of one sample, without the batch."""
    dtype: Dtype = "float32"
    """Dtype; integers are indices, such as tokens of a vocabulary, whose size the model determines."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One node of the captured graph that computes: an operator, or a fused group of them."""

    name: str
    """Path of the module that computes it, or of the enclosing module and the operator."""
    operators: tuple[str, ...]
    """Operators in execution order, for example ``("conv2d", "batch_norm", "relu")``."""
    predecessors: tuple[int, ...]
    """Indices of the layers whose activations it reads, ascending; none for the first layer."""
    input_bytes: tuple[int, ...]
    """Bytes per sample read from each predecessor."""
    parameter_bytes: int
    """Bytes of its parameters, and so of its gradients."""
    parameters: tuple[str, ...]
    """Names of its parameters in the model."""
    signature: str
    """Hash of operators and shapes; layers of equal signature share a measurement."""
    activation_bytes: int | None = None
    """Bytes per sample that the forward saves for the backward; None: captured by a version that did not record it."""
    autocast_activation_bytes: int | None = None
    """Bytes per sample that the forward saves under autocast to bf16 or fp16."""
    parameter_sizes: tuple[int, ...] | None = None
    """Bytes of each of ``parameters``; None: captured by a version that did not record it."""

    def __str__(self) -> str:
        return f"{self.name} ({' + '.join(self.operators)}), {format_bytes(self.parameter_bytes)} of parameters"


# Without slots, since what follows from the layers is kept.
@dataclass(frozen=True)
class LayerGraph:
    """Layers in a topological order; the last one computes the loss."""

    model: str
    """A workload's name, ``package.module:callable``, or the class of a model given as an object."""
    input_shape: tuple[int, ...]
    """Shape of one sample of the first input, without the batch."""
    layers: tuple[Layer, ...]
    parameter_bytes: int
    """Bytes of all trainable parameters, tied ones once."""
    inputs: tuple[Input, ...] = ()
    """All inputs; by default one of float32 and ``input_shape``."""
    granularity: Granularity = "module"

    def __post_init__(self) -> None:
        if not self.inputs:
            object.__setattr__(self, "inputs", (Input("", self.input_shape),))
        if not 1 <= len(self.layers) <= MAXIMUM_LAYERS:
            raise InvalidValueError(f"layers must be 1 to {MAXIMUM_LAYERS}, got {len(self.layers)} (capture again)")
        for index, layer in enumerate(self.layers):
            sources = layer.predecessors
            if len(layer.input_bytes) != len(sources) or any(not 0 <= source < index for source in sources):
                raise InvalidValueError(
                    f"layer '{layer.name}', number {index}, has predecessors {list(sources)[:9]} and input_bytes "
                    f"{list(layer.input_bytes)[:9]}, expected earlier layers with their bytes (capture again)"
                )
            sizes = (layer.parameter_bytes, layer.activation_bytes, layer.autocast_activation_bytes, *layer.input_bytes)
            if any(size is not None and size < 0 for size in sizes):
                raise InvalidValueError(f"layer '{layer.name}' has a size below 0 bytes (capture again)")
        read = {source for layer in self.layers for source in layer.predecessors}
        if unread := [layer.name for index, layer in enumerate(self.layers[:-1]) if index not in read]:
            raise InvalidValueError(f"no layer reads {', '.join(unread[:9])}, but the last one ends every path")

    @property
    def fingerprint(self) -> str:
        """Hash of all that matters for planning and running."""
        text = repr((self.input_shape, [(x.name, x.operators, x.predecessors, x.signature) for x in self.layers]))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def gradients(self) -> tuple[Mapping[str, int], ...]:
        """Per layer the bytes of the gradients that its backward completes, by the name of the parameter.

        A tied parameter counts for the first layer that uses it, which is the last in the backward pass. Where only
        the sum of a layer's parameters is known, it is that of the first one.
        """
        seen, found = set[str](), list[Mapping[str, int]]()
        for layer in self.layers:
            sizes = (layer.parameter_bytes,) if layer.parameter_sizes is None else layer.parameter_sizes
            # Layers made by hand may have bytes without names.
            named = zip(layer.parameters or (layer.name,), sizes, strict=False)
            found.append({name: size for name, size in named if size and name not in seen})
            seen |= found[-1].keys()
        return tuple(found)

    @cached_property
    def gradient_bytes(self) -> tuple[int, ...]:
        """Per layer the bytes of the gradients that its backward completes: of its parameters, tied ones once."""
        return tuple(sum(sizes.values()) for sizes in self.gradients)

    @cached_property
    def tied(self) -> Mapping[tuple[int, ...], int]:
        """Bytes of the parameters that several layers use, by these layers, ascending."""
        users: dict[str, list[int]] = {}
        for index, layer in enumerate(self.layers):
            for name in layer.parameters:
                users.setdefault(name, []).append(index)
        found: dict[tuple[int, ...], int] = {}
        for sizes in self.gradients:
            for name, size in sizes.items():
                if len(users[name]) > 1:
                    found[tuple(users[name])] = found.get(tuple(users[name]), 0) + size
        return found

    @cached_property
    def later_users(self) -> tuple[tuple[int, ...], ...]:
        """Per layer the later layers that use some of its parameters, where it is the first that does."""
        found: list[set[int]] = [set() for _ in self.layers]
        for first, *others in self.tied:
            found[first].update(others)
        return tuple(tuple(sorted(users)) for users in found)

    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Returns, per layer, the layers that read it."""
        found: list[list[int]] = [[] for _ in self.layers]
        for index, layer in enumerate(self.layers):
            for predecessor in layer.predecessors:
                found[predecessor].append(index)
        return tuple(map(tuple, found))

    def __str__(self) -> str:
        shapes = " and ".join("x".join(map(str, given.shape)) for given in self.inputs)
        return (
            f"{self.model} on {shapes}: {format_count(len(self.layers), 'layer')}, "
            f"{len({layer.signature for layer in self.layers})} distinct, "
            f"{format_bytes(self.parameter_bytes)} of parameters"
        )

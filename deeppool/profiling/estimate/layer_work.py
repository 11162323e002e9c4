"""The kernels of each layer's forward and backward on a GPU.

The model runs once on fake tensors, which have shapes but no data, and every operator that reaches PyTorch's
dispatcher is recorded as its kernels (:mod:`deeppool.device.kernels`), for the layer whose operator it is. The whole
model runs, not each layer alone, because a layer's work depends on what the layers before it pass on: under autocast
a tensor that is in 16 bits already is not converted again.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from deeppool.device.kernel import Kernel
from deeppool.device.kernels import ADDS_ROWS, is_channels_last, kernels_of
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.fake_tensors import FakeTensorRun, ShapesMode
from deeppool.job import Progress

NO_KERNEL = ("aten::empty", "aten::_unsafe_view", "prim::")
"""Operators other than views that launch no kernel."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """The kernels of a layer at one per-GPU batch, in launch order."""

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]


def model_work(captured: CapturedModel, batch: int, *, autocast: bool = False) -> tuple[LayerWork, ...]:
    """Returns the kernels of every layer's forward and backward, at a per-GPU batch.

    Args:
        captured: the model.
        batch: number of samples on the GPU.
        autocast: products and convolutions run in 16 bits, as under ``torch.autocast("cuda")``. A conversion
            counts for the layer that asks for it first.
    """
    mode = ShapesMode()
    run = _LayerRun(captured, mode)
    with mode:
        data = [
            torch.empty([batch, *map(int, node.meta["val"].shape[1:])], dtype=node.meta["val"].dtype)
            for node in captured.program.graph.nodes
            if node.op == "placeholder"
        ]
        if is_channels_last(*captured.source.parameters()):
            data = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in data]
    recorded = _record(lambda: [run.run(*data)], run.attributes.values, mode, _Recorder(run.layer), autocast=autocast)
    parts: list[list[list[Kernel]]] = [[[] for _ in captured.nodes] for _ in recorded]
    for kernels, found in zip(recorded, parts, strict=True):
        for layer, kernel in kernels:
            found[layer].append(kernel)
    return tuple(LayerWork(tuple(forward), tuple(backward)) for forward, backward in zip(*parts, strict=True))


def model_works(
    captured: CapturedModel, batches: Sequence[int], *, autocast: bool = False, on_progress: Progress | None = None
) -> dict[int, tuple[LayerWork, ...]]:
    """Returns the kernels of every layer at several per-GPU batches.

    Samples do not depend on each other, so FLOPs, bytes and rows are straight lines over the batch: the model runs at
    the ends of ``batches``. Where the kernels at the ends differ, which they do at 1 if broadcasting saves some there,
    and if more samples read all rows of a table, it also runs at the second smallest batch, and where these differ at
    every batch.
    """
    sizes = sorted(set(batches))
    found: dict[int, tuple[LayerWork, ...]] = {}
    low, last = sizes[0], sizes[-1]
    for batch in dict.fromkeys((low, last, *sizes)):
        if on_progress is not None:
            on_progress(f"kernels at batch {batch}", len(found) / len(sizes))
        works = None
        if low < batch < last:
            works = _line(found[low], found[last], (batch - low) / (last - low))
        found[batch] = works or model_work(captured, batch, autocast=autocast)
        if low == 1 < batch < last and works is None:
            low = batch
    return found


def trace(
    forward: Callable[[], Iterable[Any]],
    leaves: Callable[[], Iterable[torch.Tensor]],
    *,
    mode: FakeTensorMode,
    autocast: bool = False,
) -> LayerWork:
    """Records the kernels of ``forward`` on fake tensors, and of the gradients of the ``leaves`` that require one.

    Args:
        forward: computes the outputs.
        leaves: returns inputs and parameters; called after the forward.
        mode: fake tensor mode of the tensors.
        autocast: as in :func:`model_work`.
    """
    recorder = _Recorder(lambda: 0)
    first = _record(forward, leaves, mode, recorder, autocast=autocast)
    return LayerWork(*(tuple(kernel for _, kernel in kernels) for kernels in first))


Recorded = list[tuple[int, Kernel]]
"""Kernels in launch order, each with the index of its layer."""


def _record(
    forward: Callable[[], Iterable[Any]],
    leaves: Callable[[], Iterable[torch.Tensor]],
    mode: FakeTensorMode,
    recorder: "_Recorder",
    *,
    autocast: bool,
) -> tuple[Recorded, Recorded]:
    """Returns the kernels of the forward and of the backward."""
    # Dispatch happens below autograd: a convolution's backward is an operator like any other.
    with mode, torch.enable_grad():
        with recorder, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs = [x for x in forward() if isinstance(x, torch.Tensor) and x.requires_grad]
        first = recorder.take()
        wanted = [x for x in leaves() if x.requires_grad]
        if not outputs or not wanted:
            return first, []
        gradients = [torch.ones_like(x) for x in outputs]
        with recorder:
            torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
    return first, recorder.take()


def _line(low: Sequence[LayerWork], high: Sequence[LayerWork], share: float) -> tuple[LayerWork, ...] | None:
    """Returns the work on the straight line from one batch to another; None if the kernels differ."""
    works = []
    for first, last in zip(low, high, strict=True):
        parts = []
        for start, end in ((first.forward, last.forward), (first.backward, last.backward)):
            if list(map(_form, start)) != list(map(_form, end)):
                return None
            parts.append(tuple(_between(*pair, share) for pair in zip(start, end, strict=True)))
        works.append(LayerWork(*parts))
    return tuple(works)


def _form(kernel: Kernel) -> tuple[Any, ...]:
    """Returns what must not depend on the batch."""
    names = [field.name for field in fields(kernel) if field.type is not int]
    return (kernel.element_size, *(getattr(kernel, name) for name in names))


def _between(low: Kernel, high: Kernel, share: float) -> Kernel:
    pairs = {field.name: (getattr(low, field.name), getattr(high, field.name)) for field in fields(low)}
    moved = {name: round(start + share * (end - start)) for name, (start, end) in pairs.items() if start != end}
    return replace(low, **moved) if moved else low


class _LayerRun(FakeTensorRun):
    """Runs a captured model, and finds the layer of each operator that is dispatched.

    Autograd numbers its nodes in the order of the forward, so an operator of the backward belongs to the layer that
    ran when its node was made.
    """

    def __init__(self, captured: CapturedModel, mode: ShapesMode) -> None:
        super().__init__(captured.program, mode)
        self._layers = {node: index for index, group in enumerate(captured.nodes) for node in group}
        self._starts, self._owners = [0], [0]

    def run_node(self, node: fx.Node) -> Any:
        owner = self._layers.get(node, self._owners[-1])
        if owner != self._owners[-1]:
            self._starts.append(torch._C._autograd._get_sequence_nr())
            self._owners.append(owner)
        return super().run_node(node)

    def layer(self) -> int:
        """Returns the layer of the operator that is being dispatched."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return self._owners[-1]
        return self._owners[bisect_right(self._starts, node._sequence_nr()) - 1]


class _Recorder(TorchDispatchMode):
    """Records dispatched operators as kernels, with the index of the layer that runs."""

    def __init__(self, layer: Callable[[], int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layer = layer
        self._kernels: Recorded = []

    def take(self) -> Recorded:
        """Returns the kernels recorded since the last call."""
        found, self._kernels = self._kernels, []
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        result = func(*args, **(kwargs or {}))
        if not func.is_view and not name.startswith(NO_KERNEL):
            outputs = _tensors(result)
            if outputs:
                layer = self._layer()
                name = name.removeprefix("aten::")
                if f"{name}_" in ADDS_ROWS and torch._C._current_autograd_node() is not None:
                    # Backwards add to new zeros in place, but where tensors are of a class of Python.
                    name += "_"
                found = kernels_of(name, args, _tensors((args, kwargs)), outputs)
                self._kernels += [(layer, kernel) for kernel in found]
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    """Returns the distinct tensors among arguments or results."""
    return list({id(x): x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor)}.values())

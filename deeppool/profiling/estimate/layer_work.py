"""The kernels of a layer's forward and backward on a GPU.

The layer runs once on fake tensors, which have shapes but no data, and every operator that reaches PyTorch's
dispatcher is recorded as its kernels (:mod:`deeppool.device.kernels`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from deeppool.device.kernels import Kernel, kernels_of
from deeppool.graph.capture.extract import Segment, example_inputs
from deeppool.graph.capture.fake_tensors import FakeTensorRun

NO_KERNEL = ("aten::empty", "aten::_unsafe_view")
"""Operators other than views that launch no kernel."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """The kernels of a layer at one per-GPU batch, in launch order."""

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]


def layer_work(segment: Segment, batch: int, *, autocast: bool = False) -> LayerWork:
    """Returns the kernels of the forward and backward of some layers.

    Args:
        segment: the layers, of :func:`deeppool.graph.capture.extract.extract`.
        batch: number of samples on the GPU.
        autocast: products and convolutions run in 16 bits. All casts are counted, including those of
            weights that autocast caches: every layer is taken alone. The casted operators are those of a CPU.
    """
    mode = FakeTensorMode()
    run = FakeTensorRun(segment.module, mode)
    with mode:
        inputs = example_inputs(segment, batch, torch.device("cpu"))
    return trace(
        lambda: run.run(batch, *inputs), lambda: [*inputs, *run.attributes.values()], mode=mode, autocast=autocast
    )


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
        autocast: as in :func:`layer_work`.
    """
    # Dispatch happens below autograd: a convolution's backward is an operator like any other.
    recorder = _Recorder()
    with mode, torch.enable_grad():
        with recorder, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs = [x for x in forward() if isinstance(x, torch.Tensor) and x.requires_grad]
        first = recorder.take()
        wanted = [x for x in leaves() if x.requires_grad]
        if not outputs or not wanted:
            return LayerWork(first, ())
        gradients = [torch.ones_like(x) for x in outputs]
        with recorder:
            torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
    return LayerWork(first, recorder.take())


class _Recorder(TorchDispatchMode):
    """Records dispatched operators as kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kernels: list[Kernel] = []

    def take(self) -> tuple[Kernel, ...]:
        """Returns the kernels recorded since the last call."""
        found, self._kernels = tuple(self._kernels), []
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        if name == "aten::native_batch_norm" and args[0].numel() == args[0].shape[1]:
            # With one element per channel the real kernel works, the fake one divides by zero.
            result = (torch.empty_like(args[0]), *(torch.empty(args[0].shape[1]) for _ in range(2)))
        else:
            result = func(*args, **(kwargs or {}))
        if name.startswith("aten::") and not func.is_view and not name.startswith(NO_KERNEL):
            outputs = _tensors(result)
            if outputs:
                self._kernels += kernels_of(name.removeprefix("aten::"), args, _tensors((args, kwargs)), outputs)
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    """Returns the distinct tensors among arguments or results."""
    return list({id(x): x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor)}.values())

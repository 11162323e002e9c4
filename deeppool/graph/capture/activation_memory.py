"""Memory that the forward saves for the backward, per layer, found without computing anything.

The program runs once on fake tensors, which have shapes and memory addresses but no data, and autograd
records as in training: a hook sees every tensor that it saves. A tensor counts once, for the layer that
allocated its memory, however many operators save it or views of it; input data counts for the first layer that
saves it. Parameters and buffers do not count: they are allocated anyway.

Autograd saves the same on a GPU except for operators with special kernels there, which are modelled: dropout saves one
byte per element; fused attention saves its inputs and its result, not its matrix, whatever its dropout; and beside
inputs and states an LSTM or GRU saves five values per element of the state and step (cuDNN does not publish its own
number). Attention written as products and a softmax saves the matrix.
"""

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from deeppool.graph.capture.fake_tensors import FakeTensorRun, ShapesMode

PRIME_BATCH = 1009
"""Batch of the fake run. Sizes that grow with the batch are divisible by it, others only by accident."""


def saved_bytes(program: fx.GraphModule, groups: tuple[tuple[fx.Node, ...], ...], *, autocast: bool) -> tuple[int, ...]:
    """Returns the bytes per sample that each group's forward saves for the backward.

    Args:
        program: maps (inputs, target) to the loss; see :class:`~deeppool.graph.capture.capture.CapturedModel`.
        groups: nodes per layer.
        autocast: whether products and convolutions run in 16 bits, as under ``torch.autocast``. The 16-bit
            copies of parameters, which do not grow with the batch, are not counted.
    """
    mode = ShapesMode()
    run = _Recorder(program, mode)
    with mode:
        data = [
            torch.empty([PRIME_BATCH, *map(int, node.meta["val"].shape[1:])], dtype=node.meta["val"].dtype)
            for node in program.graph.nodes
            if node.op == "placeholder"
        ]
    with (
        mode,
        torch.enable_grad(),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        torch.autograd.graph.saved_tensors_hooks(run.save, lambda packed: packed),
    ):
        run.run(*data)
    owner = {node: index for index, group in enumerate(groups) for node in group}
    totals = [0] * len(groups)
    for tensor, saver in run.saved.values():
        storage = tensor.untyped_storage()
        layer = owner.get(run.producers.get(storage._cdata, saver), owner.get(saver))
        if layer is not None and storage.nbytes() % PRIME_BATCH == 0:
            totals[layer] += storage.nbytes() // PRIME_BATCH
    run.release()
    return tuple(totals)


class _Recorder(FakeTensorRun):
    """Runs a program on fake tensors and records which operators allocate and save which storage."""

    def __init__(self, program: fx.GraphModule, mode: ShapesMode) -> None:
        # All values live to the end: an address identifies a tensor only while it lives.
        super().__init__(program, mode, garbage_collect_values=False)
        self.producers: dict[int, fx.Node] = {}
        """Per storage, the operator that allocated it."""
        self.saved: dict[int, tuple[torch.Tensor, fx.Node]] = {}
        """Per saved storage, a tensor on it and the first operator that saved it."""
        self._current: fx.Node | None = None

    def run_node(self, node: fx.Node) -> Any:
        self._current = node
        result = super().run_node(node)
        if node.op == "call_function":
            for value in pytree.tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    self.producers.setdefault(value.untyped_storage()._cdata, node)
        return result

    def save(self, tensor: torch.Tensor) -> None:
        """Records a tensor that autograd saves; nothing is kept, since no backward follows."""
        address = tensor.untyped_storage()._cdata
        if address not in self.permanent and self._current is not None:
            self.saved.setdefault(address, (tensor, self._current))

    def release(self) -> None:
        """Frees all values: autograd's graph holds the hook and so this object, a cycle that Python cannot collect."""
        self.env.clear()
        self.saved.clear()

"""What a forward keeps for its backward, layer by layer, found without computing anything.

The program runs once on fake tensors, which have shapes and memory addresses but no data, and autograd
records as in training: a hook sees every tensor that it saves. A tensor counts for the layer that made
its memory, once, however many operators save it or views of it; the data counts for the first layer that
saves it. Parameters and buffers do not count: they are there anyway.

Autograd saves on a GPU what it saves here, but for two operators that have kernels of their own there
and are taken as such: dropout keeps one byte an element, and fused attention keeps its inputs and its
result, not its matrix, whatever its dropout. Attention written out as products and a softmax keeps the
matrix.
"""

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

PRIME_BATCH = 1009
"""Samples of the fake run. What grows with the batch has this divisor; what does not has it only by accident."""


def saved_bytes(program: fx.GraphModule, groups: tuple[tuple[fx.Node, ...], ...], *, autocast: bool) -> tuple[int, ...]:
    """Bytes per sample that each group's forward keeps for the backward.

    Args:
        program: maps (inputs, target) to the loss; see :class:`~deeppool.graph.capture.CapturedModel`.
        groups: nodes per layer.
        autocast: whether products and convolutions run in 16 bits, as under ``torch.autocast``. The 16-bit
            copies of parameters, which do not grow with the batch, are not counted.
    """
    mode = FakeTensorMode()
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
        torch.autograd.graph.saved_tensors_hooks(run.save, lambda tensor: tensor),
    ):
        run.run(*data)
    owner = {node: index for index, group in enumerate(groups) for node in group}
    totals = [0] * len(groups)
    for tensor, saver in run.saved.values():
        storage = tensor.untyped_storage()
        layer = owner.get(run.makers.get(storage._cdata, saver), owner.get(saver))
        if layer is not None and storage.nbytes() % PRIME_BATCH == 0:
            totals[layer] += storage.nbytes() // PRIME_BATCH
    return tuple(totals)


class _Recorder(fx.Interpreter):
    """Runs a program on fake tensors and notes who makes and who saves which memory."""

    def __init__(self, program: fx.GraphModule, mode: FakeTensorMode) -> None:
        # All values are kept to the end: an address names one tensor only as long as that lives.
        super().__init__(program, garbage_collect_values=False)
        self.makers: dict[int, fx.Node] = {}
        """Per storage, the operator that made it."""
        self.saved: dict[int, tuple[torch.Tensor, fx.Node]] = {}
        """Per saved storage, a tensor on it and the first operator that saved it."""
        self._mode = mode
        self._attributes: dict[int, torch.Tensor] = {}
        self._permanent: set[int] = set()
        self._current: fx.Node | None = None

    def run_node(self, node: fx.Node) -> Any:
        self._current = node
        result = super().run_node(node)
        if node.op == "call_function":
            for value in pytree.tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    self.makers.setdefault(value.untyped_storage()._cdata, node)
        return result

    def fetch_attr(self, target: str) -> Any:
        """Parameters and buffers as fake tensors of the CPU, wherever the model is; one that is tied is one."""
        value = super().fetch_attr(target)
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._attributes:
            with self._mode:
                fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
            self._attributes[id(value)] = fake.requires_grad_(value.requires_grad)
            self._permanent.add(fake.untyped_storage()._cdata)
        return self._attributes[id(value)]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator; dropout and attention as the kernels of a GPU do."""
        if target is torch.ops.aten.dropout.default and args[1] > 0 and args[2]:
            return torch.ops.aten.native_dropout.default(args[0], args[1], True)[0]
        if target is torch.ops.aten.scaled_dot_product_attention.default:
            args = args if len(args) < 5 else (*args[:4], 0.0, *args[5:])
            kwargs = {name: value for name, value in kwargs.items() if name != "dropout_p"}
        return super().call_function(target, args, kwargs)

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Autograd saves a tensor."""
        address = tensor.untyped_storage()._cdata
        if address not in self._permanent and self._current is not None:
            self.saved.setdefault(address, (tensor, self._current))
        return tensor

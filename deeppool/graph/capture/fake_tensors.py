"""Execution of a captured program on fake tensors, which have shapes and memory addresses but no data."""

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode


class FakeTensorRun(fx.Interpreter):
    """Interpreter with fake parameters and buffers; the caller gives fake inputs.

    It runs on the CPU, with two operators executed like GPU kernels: dropout is one kernel, and attention is fused
    whatever its dropout.
    """

    def __init__(self, program: fx.GraphModule, mode: FakeTensorMode, *, garbage_collect_values: bool = True) -> None:
        """Creates the interpreter; ``garbage_collect_values=False`` keeps all values to the end."""
        super().__init__(program, garbage_collect_values=garbage_collect_values)
        self.attributes: dict[int, torch.Tensor] = {}
        """Fake parameters and buffers read so far, by the identity of the real ones."""
        self.permanent: set[int] = set()
        """Their storages."""
        self._mode = mode

    def fetch_attr(self, target: str) -> Any:
        """Returns a parameter or buffer as a fake CPU tensor, the same one for tied parameters."""
        value = super().fetch_attr(target)
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self.attributes:
            with self._mode:
                fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
            self.attributes[id(value)] = fake.requires_grad_(value.requires_grad)
            self.permanent.add(fake.untyped_storage()._cdata)
        return self.attributes[id(value)]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator; dropout and attention like GPU kernels."""
        if target is torch.ops.aten.dropout.default and args[1] > 0 and args[2]:
            return torch.ops.aten.native_dropout.default(args[0], args[1], True)[0]
        if target is torch.ops.aten.scaled_dot_product_attention.default:
            args = args if len(args) < 5 else (*args[:4], 0.0, *args[5:])
            kwargs = {name: value for name, value in kwargs.items() if name != "dropout_p"}
        return super().call_function(target, args, kwargs)

"""Execution of a captured program on fake tensors, which have shapes and memory addresses but no data."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

SINGLE_PRECISION = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "pow reciprocal rsqrt exp expm1 log log2 log10 log1p softplus softmax log_softmax sum prod cumsum norm "
        "layer_norm group_norm cross_entropy_loss nll_loss nll_loss_nd mse_loss l1_loss smooth_l1_loss huber_loss "
        "kl_div binary_cross_entropy_with_logits"
    ).split()
)
"""Operators that autocast computes in fp32 on CUDA, not on a CPU: "CUDA Ops that can autocast to float32", Automatic
Mixed Precision in PyTorch's documentation; those that capture yields."""
PROMOTED = frozenset(
    getattr(torch.ops.aten, name)
    for name in "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot".split()
)
"""Operators that autocast computes in the widest type of their inputs on CUDA, by the same list."""


BATCH_NORMS = (torch.ops.aten.native_batch_norm.default, torch.ops.aten._native_batch_norm_legit.default)


GRU = 3
"""``mode`` of a GRU among PyTorch's recurrent layers."""


class ShapesMode(FakeTensorMode):
    """Fake tensor mode that takes the results of batch normalisations from the shapes of their arguments.

    PyTorch decomposes each into its arithmetic for that, which takes much of the time of a large model, and fails where
    a channel has one element.
    """

    def dispatch(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Dispatches an operator on fake tensors."""
        if func in BATCH_NORMS and args[5]:
            data = args[0]
            with self:
                statistics = (torch.empty(data.shape[1], dtype=data.dtype, device=data.device) for _ in range(2))
                return torch.empty_like(data), *statistics
        if func is torch.ops.aten.native_batch_norm_backward.default:
            data, weight, wanted = args[1], args[2], args[9]
            with self:
                parameters = (torch.empty_like(weight) if each else None for each in wanted[1:])
                return torch.empty_like(data) if wanted[0] else None, *parameters
        return super().dispatch(func, types, args, kwargs or {})


class FakeTensorRun(fx.Interpreter):
    """Interpreter with fake parameters and buffers; the caller gives fake inputs.

    It runs on the CPU, with operators executed as on a GPU: dropout is one kernel, attention is fused whatever its
    dropout, the steps of a GRU are one operator, and under autocast :data:`SINGLE_PRECISION` operators compute in fp32.
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
        """Runs an operator as on a GPU."""
        if target is torch.ops.aten.dropout.default and args[1] > 0 and args[2]:
            return torch.ops.aten.native_dropout.default(args[0], args[1], True)[0]
        if target is torch.ops.aten.scaled_dot_product_attention.default:
            args = args if len(args) < 5 else (*args[:4], 0.0, *args[5:])
            kwargs = {name: value for name, value in kwargs.items() if name != "dropout_p"}
        if target is torch.ops.aten.gru.input:
            return _fused_gru(*args)
        packet = getattr(target, "overloadpacket", None) if torch.is_autocast_enabled("cpu") else None
        wide = any(x.dtype == torch.float32 for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor))
        if packet in SINGLE_PRECISION or (packet in PROMOTED and wide):
            args = pytree.tree_map_only(torch.Tensor, _in_single_precision, args)
        return super().call_function(target, args, kwargs)


def _in_single_precision(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _fused_gru(
    data: torch.Tensor,
    hidden: torch.Tensor,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs a GRU as cuDNN does, all steps of a layer in one operator; on a CPU each step would be several.

    The operator is that of an LSTM, which takes a GRU's three gates where only shapes are computed. Biases get no
    gradient, because its gradients of biases are of four gates.
    """
    steps = data.transpose(0, 1) if batch_first else data
    per_layer, directions = 4 if has_biases else 2, 2 if bidirectional else 1
    last = []
    for layer in range(layers):
        outputs = []
        for index in range(layer * directions, (layer + 1) * directions):
            of_data, of_hidden = weights[index * per_layer :][:2]
            bias, state = of_data.new_empty(len(of_data)), hidden[index]
            outputs.append(
                torch.ops.aten.mkldnn_rnn_layer.default(
                    *(steps, of_data, of_hidden, bias, bias, state, state, index % directions == 1, []),
                    *(GRU, state.shape[-1], 1, has_biases, False, False, train),
                )
            )
        steps = torch.cat([output[0] for output in outputs], -1) if bidirectional else outputs[0][0]
        if dropout and train and layer + 1 < layers:
            steps = torch.ops.aten.native_dropout.default(steps, dropout, True)[0]
        last += [output[1] for output in outputs]
    return steps.transpose(0, 1) if batch_first else steps, torch.stack(last)

"""Execution of a captured program on fake tensors, which have shapes and memory addresses but no data."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
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
STEP_VALUES = 5
"""Values per element of the state that a step of an LSTM or GRU keeps for its backward beside the state itself: four
gates and the cell, or three gates and two products, as PyTorch's fused cells on a GPU do (ATen/native/cuda/RNN.cu)."""


FORM_KEEPING = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "add sub mul neg relu threshold_backward leaky_relu leaky_relu_backward silu silu_backward gelu gelu_backward "
        "hardtanh hardtanh_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward sigmoid "
        "sigmoid_backward tanh tanh_backward"
    ).split()
)
"""Operators whose result has the shape and the dtype that all their floating-point tensors have in common."""


KEEPS_FORM_ALONE = frozenset(
    getattr(torch.ops.aten, name).default for name in "relu silu hardswish hardsigmoid sigmoid tanh".split()
)
"""Those of one tensor without other arguments."""


class ShapesMode(FakeTensorMode):
    """Fake tensor mode that finds the results of frequent operators in a shorter way, where sizes are numbers.

    PyTorch decomposes a batch normalisation into its arithmetic for that, which takes much of the time of a large
    model, and fails where a channel has one element. A view or an operator on single elements passes a cache of
    results and one or two decompositions, written in Python, before its shape is known.
    """

    def dispatch(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Dispatches an operator on fake tensors."""
        if func in BATCH_NORMS and args[5]:
            data = args[0]
            return self._like(data), *(self._contiguous(data.shape[1:2], data) for _ in range(2))
        if func is torch.ops.aten.native_batch_norm_backward.default:
            data, weight, wanted = args[1], args[2], args[9]
            parameters = (self._like(weight) if each else None for each in wanted[1:])
            return self._like(data) if wanted[0] else None, *parameters
        if func is torch.ops.aten.mkldnn_rnn_layer.default:
            found: Any = super().dispatch(func, types, args, kwargs or {})
            # Where only shapes are computed its own memory for the backward, the last of them, is empty.
            return *found[:3], self._contiguous((*found[0].shape, STEP_VALUES), found[0])
        if self.shape_env is not None and (result := self._of_symbols(func, args, kwargs or {})) is not None:
            return result
        if self.shape_env is None and _has_short_way(func):
            tensors: list[Any] = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            if tensors and all(map(self._is_plain, tensors)) and len({x.fake_device for x in tensors}) == 1:
                return self._by_short_way(func, args, kwargs or {}, tensors)
        if self.shape_env is None and func is torch.ops.aten._to_copy.default and (kwargs or {}).keys() == {"dtype"}:
            data, dtype = args[0], (kwargs or {})["dtype"]
            if self._is_plain(data) and data.is_contiguous():
                return self._contiguous(data.shape, data, dtype)
        return super().dispatch(func, types, args, kwargs or {})

    def _of_symbols(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        """Returns the result of a linear layer or of an operator that keeps a form, where no size has to be compared.

        PyTorch decomposes them, which takes milliseconds each where the batch is a symbol.
        """
        if kwargs or not (func is torch.ops.aten.addmm.default or func in KEEPS_FORM_ALONE):
            return None
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        if len(tensors) != len(args) or not all(map(self._is_plain, tensors)) or not _are_floats_alike(tensors):
            return None
        if func is not torch.ops.aten.addmm.default:
            (data,) = tensors
            return self._contiguous(data.shape, data) if data.is_contiguous() else None
        bias, data, weight = tensors
        sizes = [*bias.shape, *data.shape[1:], *weight.shape]
        known = bias.dim() == 1 and data.dim() == weight.dim() == 2 and all(isinstance(size, int) for size in sizes)
        if not known or bias.shape[0] != weight.shape[1] or data.shape[1] != weight.shape[0]:
            return None
        return self._contiguous((data.shape[0], weight.shape[1]), data)

    def _is_plain(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a fake one of this mode, and no number that is known."""
        return self.is_our_fake(tensor) and tensor.constant is None

    def _by_short_way(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[FakeTensor]
    ) -> Any:
        if func.overloadpacket in FORM_KEEPING and _gives_contiguous(tensors):
            return self._contiguous(tensors[0].shape, tensors[0])
        with in_kernel_invocation_manager(self):
            result = func(*args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, lambda made: self._wrapped(made, tensors[0]), result)

    def _wrapped(self, made: torch.Tensor, like: Any) -> torch.Tensor:
        if self.is_our_fake(made):
            return made
        return self.fake_tensor_converter.from_meta_and_device(self, made, like.fake_device)

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.shape_env is None and tensor.is_contiguous():
            return self._contiguous(tensor.shape, tensor)
        with self:
            return torch.empty_like(tensor)

    def fake(self, real: torch.Tensor) -> torch.Tensor:
        """Returns a tensor on the CPU with the form of another one, parameter or not."""
        with in_kernel_invocation_manager(self):
            made = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
        return self.fake_tensor_converter.from_meta_and_device(self, made, torch.device("cpu"))

    def _contiguous(self, shape: Sequence[Any], like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns a contiguous tensor with the device of another one, and its dtype unless another is given."""
        with in_kernel_invocation_manager(self):
            made = torch.empty(shape, dtype=dtype or like.dtype, device="meta")
        return self._wrapped(made, like)


@functools.cache
def _has_short_way(func: Any) -> bool:
    """Whether an operator is a view, or computes single elements, of tensors on one device; cat does so in effect."""
    short = func.is_view or torch.Tag.pointwise in func.tags or func is torch.ops.aten.cat.default
    names = {argument.name for argument in func._schema.arguments}
    return bool(short and not func._schema.is_mutable and "device" not in names)


def _gives_contiguous(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a result on the elements of tensors is contiguous and has their shape and dtype."""
    first = tensors[0]
    if not first.is_floating_point() or any(x.shape != first.shape or x.dtype != first.dtype for x in tensors):
        return False
    return all(x.is_contiguous() for x in tensors) or all(map(_is_rows, tensors))


def _are_floats_alike(tensors: Sequence[Any]) -> bool:
    """Whether tensors have one floating-point type and one device."""
    first = tensors[0]
    return first.is_floating_point() and all(
        x.dtype == first.dtype and x.fake_device == first.fake_device for x in tensors
    )


def _is_rows(tensor: torch.Tensor) -> bool:
    """Whether the last dimension is the innermost in memory, the one before it the next, and so on."""
    strides = tensor.stride()
    return min(tensor.shape, default=0) > 1 and all(one > other for one, other in itertools.pairwise((*strides, 0)))


class FakeTensorRun(fx.Interpreter):
    """Interpreter with fake parameters and buffers; the caller gives fake inputs.

    It runs on the CPU, with operators executed as on a GPU: dropout is one kernel, attention is fused whatever its
    dropout, the steps of a GRU are one operator, and under autocast :data:`SINGLE_PRECISION` operators compute in fp32.
    """

    def __init__(self, program: fx.GraphModule, mode: ShapesMode, *, garbage_collect_values: bool = True) -> None:
        """Creates the interpreter; ``garbage_collect_values=False`` keeps all values to the end."""
        super().__init__(program, garbage_collect_values=garbage_collect_values)
        self.attributes: dict[int, torch.Tensor] = {}
        """Fake parameters and buffers read so far, by the identity of the real ones."""
        self.permanent: set[int] = set()
        """Their storages."""
        self._mode = mode

    def run(self, *data: Any, **_: Any) -> Any:
        """Runs the program without torch's progress bar, which starts a thread and has a lock that forks share."""
        self.env, self.args_iter = {}, iter(self.graph.process_inputs(*data))
        result: Any = None
        for node in self.graph.nodes:
            result = self.env[node] = self.run_node(node)
            for done in self.user_to_last_uses.get(node, []) if self.garbage_collect_values else []:
                del self.env[done]
        return self.graph.process_outputs(result)

    def fetch_attr(self, target: str) -> Any:
        """Returns a parameter or buffer as a fake CPU tensor, the same one for tied parameters."""
        value = super().fetch_attr(target)
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self.attributes:
            fake = self._mode.fake(value)
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

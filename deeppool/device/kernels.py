"""The kernels that eager PyTorch launches for an operator on a GPU, with their FLOPs and bytes.

A convolution's bias is a kernel of its own; a convolution's backward is one for the data and one for the weights.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.utils.flop_counter import conv_flop_count, sdpa_backward_flop_count, sdpa_flop_count

from deeppool.device.kernel import Kernel

PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
"""Argument positions of the two factors."""

READ_AGAIN = {
    # Statistics are computed before the result.
    "native_batch_norm": (0,),
    "_native_batch_norm_legit": (0,),
    "native_group_norm": (0,),
    "native_layer_norm": (0,),
    "native_batch_norm_backward": (0, 1),
    "native_group_norm_backward": (0, 1),
    # The gradients of scale and shift reduce over the other dimension, in a separate kernel.
    "native_layer_norm_backward": (0, 1),
    # The maximum and the sum of a row are computed before the result.
    "_softmax": (0,),
    "_log_softmax": (0,),
    "_softmax_backward_data": (0, 1),
    "_log_softmax_backward_data": (0, 1),
}
"""Argument positions of tensors that are read twice."""

BY_ROWS = ("native_layer_norm", "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")
"""Those whose thread blocks read a row, the last dimension, and then the same row again."""

SHORT_ROW = 1024
"""Elements of a row that a softmax keeps in registers, and so reads once."""

ADDS_ROWS = {"index_put_": 2, "index_add_": 3, "scatter_add_": 3}
"""Operators that add rows to a tensor in place, and the argument positions of the rows."""

FIND_WINDOWS = 2
"""Reads per element, in the backward of pooling, to find the windows that contain it."""


def kernels_of(
    name: str, args: tuple[Any, ...], inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> list[Kernel]:
    """Returns the kernels that an operator launches.

    Args:
        name: name of the operator; without its namespace if that is PyTorch's own, with an underscore at the end if it
            changes its first argument in place.
        args: arguments of the call.
        inputs: the tensors among the arguments.
        outputs: the returned tensors.
    """
    if name == "convolution":
        return _convolution(args, outputs[0])
    if name == "convolution_backward":
        return _convolution_backward(args)
    if name in PRODUCTS:
        left, right = (args[position] for position in PRODUCTS[name])
        *count, rows, depth = left.shape
        columns, many = right.shape[-1], math.prod(count)
        flops = 2 * many * rows * depth * columns
        return [_product(name, flops, rows, columns, many, inputs, outputs)]
    if "grouped_mm" in name:
        if not name.endswith("_backward"):
            return [_grouped(name, args[0], args[1], inputs, outputs)]
        left, right, _, gradient = args[:4]
        found = [
            _grouped(f"{name}_data", gradient, right.transpose(-1, -2), [gradient, right], outputs[:1]),
            _grouped(f"{name}_weight", left.transpose(-1, -2), gradient, [gradient, left], outputs[1:]),
        ]
        return found[: len(outputs)]
    if name.startswith("mkldnn_rnn_layer"):
        return _recurrent(name, args[0], args[2])
    if "::" in name:
        # Nothing is known of what it computes.
        return [Kernel(name, "memory", _size(inputs) + _size(outputs))]
    if "scaled_dot_product" in name:
        backward = name.endswith("_backward")
        query, key, value = (tensor.shape for tensor in args[backward : backward + 3])
        flops = (
            sdpa_backward_flop_count(args[0].shape, query, key, value)
            if backward
            else sdpa_flop_count(query, key, value)
        )
        return [_product(name, flops, query[-2], key[-2], math.prod(query[:-2]), inputs, outputs)]
    if name == "embedding":
        # Reads the selected rows, not the whole table.
        return [Kernel(name, "memory", _size([args[1]]) + 2 * _size(outputs))]
    untouched, whole_table = _untouched(name, args, outputs[0])
    moved = _size(inputs) + _size(outputs) - untouched
    # The inverse of a maximum pooling has indices in place of windows.
    if "pool" in name and "unpool" not in name:
        return [Kernel(name, "window", moved, window_reads=_pooled(name, args, outputs[0]))]
    again, row = _read_again(name, args)
    return [Kernel(name, "memory", moved, again_bytes=again, row_bytes=row, whole_table=whole_table)]


def _untouched(name: str, args: tuple[Any, ...], output: torch.Tensor) -> tuple[int, bool]:
    """Returns the bytes that an operator on some rows of a table leaves alone, and whether it leaves none of it."""
    if name in ("index", "index_select", "gather"):
        taken = _size([output])
    elif name == "_embedding_bag":
        taken = args[1].numel() * args[0].shape[1] * args[0].element_size()
    elif name in ADDS_ROWS:
        taken = _size([args[ADDS_ROWS[name]]])
    else:
        return 0, False
    left = max(0, _size(args[:1]) - taken)
    # What is added to is read and written.
    return (2 if name in ADDS_ROWS else 1) * left, not left


def _read_again(name: str, args: tuple[Any, ...]) -> tuple[int, int]:
    """Returns the bytes that are read twice, and those of a row after which they are."""
    read = [args[position] for position in READ_AGAIN.get(name, ())]
    if not read or name not in BY_ROWS:
        return _size(read), 0
    row = math.prod(args[1]) if name == "native_layer_norm" else read[0].shape[-1] if read[0].dim() else 1
    if name != "native_layer_norm" and row <= SHORT_ROW:
        return 0, 0
    return _size(read), row * sum(x.element_size() for x in read)


def _grouped(
    name: str, left: torch.Tensor, right: torch.Tensor, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> Kernel:
    """Returns the products of groups of rows with a matrix each, as of a mixture of experts."""
    if left.dim() == right.dim() == 2:
        # The rows of a group are what is summed over: gradients of the matrices.
        groups, rows, columns = outputs[0].shape
        flops = 2 * left.numel() * columns
    elif left.dim() == 2:
        groups, depth, columns = right.shape
        rows, flops = -(-left.shape[0] // groups), 2 * left.numel() * columns
    else:
        groups, rows, depth = left.shape
        columns, flops = -(-right.shape[-1] // groups), 2 * rows * depth * right.shape[-1]
    return _product(name, flops, rows, columns, groups, inputs, outputs)


def _recurrent(name: str, data: torch.Tensor, hidden_weight: torch.Tensor) -> list[Kernel]:
    """Returns the products of one layer of an LSTM: of all steps with their inputs, and of each with the one before."""
    steps, batch, width = data.shape
    gates, hidden = hidden_weight.shape
    element, rows = data.element_size(), steps * batch

    def product(operator: str, rows: int, columns: int, depth: int) -> Kernel:
        moved = element * (rows * depth + depth * columns + rows * columns)
        return Kernel(operator, "product", moved, 2 * rows * columns * depth, rows, columns, 1, element)

    gate_bytes = element * rows * gates
    if "backward" not in name:
        step = product(name, batch, gates, hidden)
        return [product(name, rows, gates, width), *[step] * steps, Kernel(name, "memory", 2 * gate_bytes)]
    step = product(name, batch, hidden, gates)
    weights = [product(name, gates, depth, rows) for depth in (width, hidden)]
    return [*[step] * steps, product(name, rows, width, gates), *weights, Kernel(name, "memory", 3 * gate_bytes)]


def _pooled(name: str, args: tuple[Any, ...], output: torch.Tensor) -> int:
    """Returns the elements that the windows of a pooling read."""
    backward = "_backward" in name
    wide, narrow = (output, args[0]) if backward else (args[0], output)
    if "adaptive" in name:
        reads = max(wide.numel(), narrow.numel())
    else:
        window = args[1 + backward]
        dimensions = int(name[name.index("pool") + 4])
        reads = narrow.numel() * math.prod(window if len(window) > 1 else [*window] * dimensions)
    return int(reads + FIND_WINDOWS * wide.numel() * backward)


def _product(
    name: str, flops: int, rows: int, columns: int, count: int, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> Kernel:
    moved = _size(inputs) + _size(outputs)
    return Kernel(name, "product", moved, flops, rows, columns, count, outputs[0].element_size())


def _convolution(args: tuple[Any, ...], output: torch.Tensor) -> list[Kernel]:
    data, weight, bias, *_, groups = args
    found = [_convolution_product("convolution", args, data, weight, output, "output", groups)]
    if bias is not None:
        found.append(Kernel("convolution_bias", "memory", 2 * _size([output])))
    return found


def _convolution_backward(args: tuple[Any, ...]) -> list[Kernel]:
    gradient, data, weight, _, *rest, groups, wanted = args
    as_forward = (data, weight, None, *rest, groups)
    name = "convolution_backward"
    found = []
    if wanted[0]:
        found.append(_convolution_product(f"{name}_data", as_forward, data, weight, gradient, "data", groups))
    if wanted[1]:
        found.append(_convolution_product(f"{name}_weight", as_forward, data, weight, gradient, "weight", groups))
    if wanted[2]:
        found.append(Kernel(f"{name}_bias", "memory", _size([gradient])))
    return found


def _convolution_product(
    name: str,
    args: tuple[Any, ...],
    data: torch.Tensor,
    weight: torch.Tensor,
    output: torch.Tensor,
    result: Literal["output", "data", "weight"],
    groups: int,
) -> Kernel:
    """Returns the implicit matrix product that computes one of the three tensors of a convolution."""
    moved = _size([data, weight, output])
    flops = conv_flop_count(list(data.shape), list(weight.shape), list(output.shape), transposed=args[6])
    channels_in, channels_out = data.shape[1] // groups, output.shape[1] // groups
    area = math.prod(weight.shape[2:])
    if channels_in == 1 and groups > 1:
        # Depthwise convolutions have kernels without matrix products.
        return Kernel(name, "depthwise", moved, flops, window_reads=output.numel() * area)
    if result == "weight":
        rows, columns = channels_out, channels_in * area
    else:
        made = output if result == "output" else data
        rows, columns = made.numel() // made.shape[1], channels_out if result == "output" else channels_in
    read = {"output": [data], "data": [output], "weight": [data, output]}[result]
    converted = 0 if data.dim() == 4 and is_channels_last(data, weight) else 1
    return Kernel(
        name,
        "convolution",
        moved,
        flops,
        rows,
        columns,
        groups,
        data.element_size(),
        layout_bytes=converted * _size(read),
        weight_bytes=converted * _size([weight]),
        pointwise=area == 1,
    )


def is_channels_last(*tensors: torch.Tensor) -> bool:
    """Returns whether any tensor has its channels last in memory, to which convolutions then keep all others."""
    return any(
        x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous() for x in tensors if x.dim() == 4
    )


def _size(tensors: Sequence[torch.Tensor]) -> int:
    """Returns the bytes in memory; an expanded tensor occupies only those of what it was expanded from."""
    # A sparse tensor has no memory of its own.
    held = [part for x in tensors for part in ((x._indices(), x._values()) if x.is_sparse else (x,))]
    return sum(min(_elements(x) * x.element_size(), x.untyped_storage().nbytes()) for x in held)


def _elements(tensor: torch.Tensor) -> int:
    """Returns the elements that are not repeated along a dimension."""
    strides = tensor.stride()
    if 0 not in strides:
        return tensor.numel()
    return math.prod(size if step else min(size, 1) for size, step in zip(tensor.shape, strides, strict=True))

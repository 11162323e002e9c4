"""Value ranges of integer tensors, from the embeddings and losses that they index."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
RANGES: dict[Any, Callable[[tuple[Any, ...]], tuple[Any, Mapping[int, Any]]]] = {
    aten.embedding.default: lambda args: (args[0], {0: args[1]}),
    aten.embedding_bag.default: lambda args: (args[0], {0: args[1]}),
    aten.embedding_bag.padding_idx: lambda args: (args[0], {0: args[1]}),
    aten.cross_entropy_loss.default: lambda args: (args[0], {1: args[1]}),
    aten.nll_loss.default: lambda args: (args[0], {1: args[1]}),
    aten.nll_loss_nd.default: lambda args: (args[0], {1: args[1]}),
    aten.nll_loss2d.default: lambda args: (args[0], {1: args[1]}),
    aten.gather.default: lambda args: (args[0], {args[1]: args[2]}),
    aten.index_select.default: lambda args: (args[0], {args[1]: args[2]}),
    aten.index.Tensor: lambda args: (args[0], dict(enumerate(args[1]))),
}
"""Functions from an indexing operator's arguments to the indexed tensor, and the indices of its dimensions."""
UNKNOWN = 2
"""Number of values of integers that index nothing, such as masks."""


def value_count(node: fx.Node) -> int:
    """Returns n where an integer tensor's values are 0 … n-1, from what it or a copy of it indexes."""
    return min(_ranges(node, set()), default=UNKNOWN)


def indexes(node: fx.Node) -> bool:
    """Whether an integer tensor, or a copy of it, indexes another tensor."""
    return bool(_ranges(node, set()))


def _ranges(node: fx.Node, seen: set[fx.Node]) -> set[int]:
    found: set[int] = set()
    for user in node.users:
        # Another copy of the tensor may index another dimension, so these are looked at for each.
        if user.target in RANGES:
            source, indices = RANGES[user.target](user.args)
            sizes = [source.meta["val"].shape[dim] for dim, index in indices.items() if index is node]
            # A batch has no last sample.
            found |= {size for size in sizes if isinstance(size, int)}
        elif user not in seen and _is_integer(user):
            seen.add(user)
            found |= {count for after in _ranges(user, seen) if (count := _before(user, node, after)) is not None}
    return found


def _before(user: fx.Node, node: fx.Node, count: int) -> int | None:
    """Returns the number of values of an operand of which an operator makes at most ``count``; None: nothing follows.

    Columns of features that share a table have an offset each, for example.
    """
    packet = getattr(user.target, "overloadpacket", None)
    if packet not in (aten.add, aten.mul):
        return count
    other = [operand for operand in user.args[:2] if operand is not node]
    largest = _largest(other[0]) if other else None
    if largest is None:
        return None
    return max(1, count - max(0, largest)) if packet is aten.add else 1 + (count - 1) // max(1, largest)


def _largest(operand: Any) -> int | None:
    """Returns the largest number of a constant; None: it is none."""
    if isinstance(operand, int):
        return operand
    if not isinstance(operand, fx.Node) or operand.op != "get_attr":
        return None
    value = attrgetter(str(operand.target))(operand.graph.owning_module)
    return None if value.is_meta or value.is_floating_point() or not value.numel() else int(value.max())


def _is_integer(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32)

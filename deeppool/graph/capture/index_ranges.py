"""Value ranges of integer tensors, from the embeddings and losses that they index."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
RANGES: dict[Any, Callable[[tuple[Any, ...]], tuple[Any, Any, int]]] = {
    aten.embedding.default: lambda args: (args[1], args[0], 0),
    aten.cross_entropy_loss.default: lambda args: (args[1], args[0], 1),
    aten.nll_loss.default: lambda args: (args[1], args[0], 1),
    aten.nll_loss_nd.default: lambda args: (args[1], args[0], 1),
    aten.nll_loss2d.default: lambda args: (args[1], args[0], 1),
    aten.gather.default: lambda args: (args[2], args[0], args[1]),
    aten.index_select.default: lambda args: (args[2], args[0], args[1]),
}
"""Functions from an indexing operator's arguments to the indices, the indexed tensor and the dimension."""
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
    for user in set(node.users) - seen:
        seen.add(user)
        if user.target in RANGES:
            indices, source, dim = RANGES[user.target](user.args)
            if indices is node:
                found.add(int(source.meta["val"].shape[dim]))
        elif _is_integer(user):
            found |= _ranges(user, seen)
    return found


def _is_integer(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32)

"""Sizes that a program computes from the batch: a layer run alone must know them from its own batch."""

from collections.abc import Collection, Sequence

import torch
from torch import fx

from deeppool.errors import CaptureError
from deeppool.graph.layer import Layer

TRIED_BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 25, 49, 60, 1009)


def multiple_of_batch(size: object, symbols: Collection[str]) -> int | None:
    """Returns k where a size is k x batch, for every batch that is tried; None for others, and for what is no size.

    Each input has a symbol of its own for the batch, and torch does not simplify ``(2 * batch + 1) // 2``, the size of
    each half of two inputs' batches in one tensor.
    """
    if not isinstance(size, torch.SymInt):
        return None
    expression = size.node.expr
    if not {str(symbol) for symbol in expression.free_symbols} <= set(symbols):
        return None
    if expression.is_Symbol:
        return 1
    values = [int(expression.subs(dict.fromkeys(expression.free_symbols, batch))) for batch in TRIED_BATCHES]
    multiple, rest = divmod(values[-1], TRIED_BATCHES[-1])
    fits = all(value == multiple * batch for value, batch in zip(values, TRIED_BATCHES, strict=True))
    return multiple if fits and multiple and not rest else None


def check_sizes(
    layers: Sequence[Layer], nodes: Sequence[Sequence[fx.Node]], symbols: Collection[str], name: str
) -> None:
    """Raises for a size that a layer reads and that is neither fixed nor a multiple of the batch."""
    owned = {node for group in nodes for node in group}
    for layer, group in zip(layers, nodes, strict=True):
        for size in _sizes(group, owned):
            if multiple_of_batch(size.meta["val"], symbols) is None:
                raise CaptureError(
                    f"layer {layer.name} of {name} reads a size, {size.name} = {size.meta['val'].node.expr}, that is "
                    "no multiple of the batch (sizes other than the batch must be fixed)"
                )


def _sizes(group: Sequence[fx.Node], owned: Collection[fx.Node]) -> list[fx.Node]:
    """Returns the sizes that a layer reads, directly or through values that depend on no data."""
    found: dict[fx.Node, None] = {}
    pending = list(group)
    for node in pending:
        for arg in node.all_input_nodes:
            if arg not in owned and arg not in found and arg.op == "call_function":
                found[arg] = None
                if not isinstance(arg.meta.get("val"), torch.SymInt):
                    pending.append(arg)
    return [node for node in found if isinstance(node.meta.get("val"), torch.SymInt)]

"""Sizes that a program computes from the batch: a layer run alone must know them from its own batch."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from deeppool.errors import CaptureError
from deeppool.graph.layer import Layer

if TYPE_CHECKING:
    from torch.export import ExportedProgram

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


def check_paths(exported: "ExportedProgram", name: str, export: Callable[[int], "ExportedProgram"]) -> None:
    """Raises for code that takes another path at another batch: a graph holds the path of the example's alone.

    torch.export keeps what code compared sizes with, as ranges of the batch and as assertions in the graph. torch's own
    code compares some too, and then computes the same: what counts is the graph of a batch for which it is otherwise.
    """
    for condition, batch in dict.fromkeys(_conditions(exported)):
        try:
            same = _operators(export(batch).graph) == _operators(exported.graph)
        except Exception:
            same = False
        if not same:
            raise CaptureError(
                f"{name} computes otherwise unless {condition}: each GPU has only some of the samples, so the graph "
                "must be the same for every batch (compare no size with that of the batch)"
            )


def _conditions(exported: "ExportedProgram") -> Iterator[tuple[str, int]]:
    """Yields conditions on the batch that a graph was exported under, and a batch that does not meet each.

    A batch of 1 is no example of the others: torch may compute it by a path of its own.
    """
    tried, ranges = TRIED_BATCHES[1:], exported.range_constraints
    for bounds in ranges.values():
        if other := [batch for batch in tried if not bounds.lower <= batch <= bounds.upper]:
            yield f"{bounds.lower} <= batch <= {bounds.upper}", other[0]
    for node in exported.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        condition = node.args[0].meta["val"] if isinstance(node.args[0], fx.Node) else None
        if isinstance(condition, torch.SymBool):
            expression = condition.node.expr
            symbols = expression.free_symbols & set(ranges)
            results = {batch: expression.subs(dict.fromkeys(symbols, batch)) for batch in tried}
            if other := [batch for batch, met in results.items() if met == False]:  # noqa: E712  # of sympy
                text = str(expression)
                for symbol in symbols:
                    text = text.replace(str(symbol), "batch")
                yield text, other[0]


def _operators(graph: fx.Graph) -> list[str]:
    """Returns the operators on tensors of a graph, with their constants."""
    found = [node for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor | tuple | list)]
    return [f"{node.target} {fx.node.map_arg((node.args, node.kwargs), lambda _: None)}" for node in found]


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

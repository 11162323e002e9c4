"""Check of code that takes another path at another batch: a graph holds the path of the example's alone."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import fx

from deeppool.errors import CaptureError
from deeppool.graph.capture.batch_sizes import TRIED_BATCHES

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def check_paths(exported: "ExportedProgram", name: str, export: Callable[[int], "ExportedProgram"]) -> None:
    """Raises for a program whose code takes another path at another batch.

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

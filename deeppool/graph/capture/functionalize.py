"""Programs without in-place writes: a stage starts with a detached leaf of autograd, which must not be written.

``relu_`` becomes ``relu``, and whatever read the written value later reads the new one. A write into a part of
a tensor, ``x[:, 1:] = y``, makes a new whole: ``x = slice_scatter(x, y, …)``.
"""

from typing import Any

import torch
from torch import fx

from deeppool.errors import CaptureError

aten = torch.ops.aten
RENAMED: dict[Any, Any] = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.zero_.default: aten.zeros_like.default,
}
"""Functional forms that torch calls by another name."""
WHOLE_OF_PART: dict[Any, Any] = {
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.select.int: aten.select_scatter.default,
}
"""Views that show a part of a tensor, and what puts a new part in its place."""


def remove_in_place(graph: fx.Graph, name: str) -> None:
    """Makes ``relu_`` and its kind out of place; erases BatchNorm's counters and dead operators."""
    for node in list(graph.nodes):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not _writes_in_place(target):
            continue
        written = node.args[0]
        state = _base(written) if isinstance(written, fx.Node) else node
        if state.op == "get_attr":
            if node.users or state.meta["val"].is_floating_point():
                raise CaptureError(
                    f"{name} writes its state {state.target} in place by {target}: layers may only update the "
                    "buffers of torch's own normalisation modules"
                )
            graph.erase_node(node)
            continue
        packet = getattr(aten, target._schema.name.split("::")[1].rstrip("_"), None)
        functional = RENAMED.get(target, getattr(packet, target._overloadname, None))
        if functional is None or not isinstance(written, fx.Node):
            raise CaptureError(f"{name} has an in-place operator, {target}, that has no functional form (avoid it)")
        wholes = _wholes(written)
        if _is_seen_elsewhere(node, [written, *wholes]):
            raise CaptureError(
                f"{name} writes {written.name} in place and reads the same memory by another view: "
                "write out of place there (relu, not relu_)"
            )
        node.target = functional
        if target is aten.copy_.default:
            _copy(node, written)
        _read_from(node, written)
        _renew(graph, node, written, wholes)
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "call_module") and not node.users:
            graph.erase_node(node)
    graph.lint()


def _copy(node: fx.Node, written: fx.Node) -> None:
    """A copy as its source in the shape and dtype of ``written``: ``aten.copy`` has no gradient."""
    source = node.args[1]
    assert isinstance(source, fx.Node)
    with node.graph.inserting_before(node):
        spread = node.graph.call_function(aten.expand_as.default, (source, written))
    spread.meta = {**node.meta, "val": node.meta["val"].to(source.meta["val"].dtype)}
    node.target, node.args, node.kwargs = aten.type_as.default, (spread, written), {}


def _writes_in_place(operator: torch._ops.OpOverload) -> bool:
    """``relu_``, but not ``__and__``."""
    return operator._schema.name.endswith("_") and operator._schema.is_mutable


def _base(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows; a node that is no view, or writes in place, is its own."""
    schema = getattr(node.target, "_schema", None)
    is_view = schema is not None and not schema.is_mutable and any(r.alias_info for r in schema.returns)
    source = node.args[0] if is_view and node.args else None
    return _base(source) if isinstance(source, fx.Node) else node


def _wholes(part: fx.Node) -> list[fx.Node]:
    """What a part was sliced from, what that was sliced from, and so on."""
    found = []
    while part.target in WHOLE_OF_PART and isinstance(part.args[0], fx.Node):
        part = part.args[0]
        found.append(part)
    return found


def _renew(graph: fx.Graph, new: fx.Node, part: fx.Node, wholes: list[fx.Node]) -> None:
    """Puts a new part into what it was sliced from, for those that read that later."""
    for whole in wholes:
        with graph.inserting_after(new):
            scatter = graph.call_function(WHOLE_OF_PART[part.target], (whole, new, *part.args[1:]), dict(part.kwargs))
        scatter.meta = {**new.meta, "val": whole.meta["val"]}
        _read_from(scatter, whole)
        new, part = scatter, whole


def _is_seen_elsewhere(node: fx.Node, known: list[fx.Node]) -> bool:
    """Whether an operator after ``node`` reads the memory that it writes, by a name that is not in ``known``."""
    order = {other: index for index, other in enumerate(node.graph.nodes)}
    before = [other for other in order if order[other] < order[node] and other.op == "call_function"]
    aliases = [other for other in before if other not in known and _base(other) is _base(known[0])]
    return any(order[user] > order[node] for alias in aliases for user in alias.users)


def _read_from(node: fx.Node, written: fx.Node) -> None:
    """Users of ``written`` that come after ``node`` read ``node`` instead: it holds what they saw in place."""
    following = set()
    after = node.next
    while after.op != "root":
        following.add(after)
        after = after.next
    written.replace_all_uses_with(node, delete_user_cb=lambda user: user in following)

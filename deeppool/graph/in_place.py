"""Programs without in-place writes: a stage starts with a detached leaf of autograd, which must not be written."""

import torch
from torch import fx

from deeppool.errors import CaptureError


def remove_in_place(graph: fx.Graph, name: str) -> None:
    """Erases dead operators and BatchNorm's counters; makes ``relu_`` and its kind out of place."""
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "call_module") and not node.users:
            schema = getattr(node.target, "_schema", None)
            written = node.args[0] if schema is not None and schema.is_mutable and node.args else None
            counter = isinstance(written, fx.Node) and not written.meta["val"].is_floating_point()
            if isinstance(written, fx.Node) and not counter:
                raise CaptureError(
                    f"{name} writes {written.name} in place and never reads it back: layers may only "
                    "update the buffers of torch's own normalisation modules"
                )
            graph.erase_node(node)
    for node in list(graph.nodes):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not _writes_in_place(target):
            continue
        packet = getattr(torch.ops.aten, target._schema.name.split("::")[1].rstrip("_"), None)
        functional = getattr(packet, target._overloadname, None) if packet is not None else None
        written = node.args[0]
        if functional is None or not isinstance(written, fx.Node):
            raise CaptureError(f"{name} has an in-place operator, {target}, that has no functional form (avoid it)")
        if _is_seen_elsewhere(node, written):
            raise CaptureError(
                f"{name} writes {written.name} in place and reads the same memory by another view: "
                "write out of place there (relu, not relu_)"
            )
        node.target = functional
        _read_from(node, written)
    graph.lint()


def _writes_in_place(operator: torch._ops.OpOverload) -> bool:
    """``relu_``, but not ``__and__``."""
    return operator._schema.name.endswith("_") and operator._schema.is_mutable


def _base(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows; a node that is no view, or writes in place, is its own."""
    schema = getattr(node.target, "_schema", None)
    is_view = schema is not None and not schema.is_mutable and any(r.alias_info for r in schema.returns)
    source = node.args[0] if is_view and node.args else None
    return _base(source) if isinstance(source, fx.Node) else node


def _is_seen_elsewhere(node: fx.Node, written: fx.Node) -> bool:
    """Whether an operator after ``node`` reads the memory that it writes, by another name than ``written``."""
    order = {other: index for index, other in enumerate(node.graph.nodes)}
    before = [other for other in order if order[other] < order[node] and other.op == "call_function"]
    aliases = [other for other in before if other is not written and _base(other) is _base(written)]
    return any(order[user] > order[node] for alias in aliases for user in alias.users)


def _read_from(node: fx.Node, written: fx.Node) -> None:
    """Users of ``written`` that come after ``node`` read ``node`` instead: it holds what they saw in place."""
    following = set()
    after = node.next
    while after.op != "root":
        following.add(after)
        after = after.next
    written.replace_all_uses_with(node, delete_user_cb=lambda user: user in following)

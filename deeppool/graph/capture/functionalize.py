"""Removal of in-place writes: a stage starts with a detached leaf of autograd, which must not be written.

``relu_`` becomes ``relu``, and later readers of the written value read the new one. A write into a part of a tensor,
``x[:, 1:] = y``, creates a new tensor: ``x = slice_scatter(x, y, …)``.
"""

import operator
from typing import Any

import torch
from torch import fx

from deeppool.errors import CaptureError
from deeppool.graph.capture.grouping import operator_name, updated_statistics
from deeppool.graph.capture.sample_layout import value_at

aten = torch.ops.aten
RENAMED: dict[Any, Any] = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.zero_.default: aten.zeros_like.default,
}
"""Functional forms whose names differ by more than the underscore."""
WHOLE_OF_PART: dict[Any, Any] = {
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.select.int: aten.select_scatter.default,
}
"""Views of a part of a tensor, and the operators that replace that part."""
DROPOUTS = frozenset(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"))
"""Operators whose masks depend on the sample and not on the plan."""
Memory = dict[fx.Node, fx.Node]
"""Per node, the first one whose memory it refers to."""


def remove_in_place(graph: fx.Graph, name: str) -> None:
    """Replaces in-place operators such as ``relu_``; removes BatchNorm's counters and dead operators."""
    memory = memory_of(graph)
    for node in list(graph.nodes):
        target = node.target
        if _is_foreign_write(node):
            raise CaptureError(
                f"{name} runs {target}, an operator of its own that writes an argument, which no layer sees (give it "
                "mutates_args=(), and return the new tensor)"
            )
        if not is_write(node):
            continue
        written = node.args[0]
        state = memory[written] if isinstance(written, fx.Node) else node
        if state.op == "get_attr":
            is_counter = not state.meta["val"].is_floating_point() and all(map(is_write, {*state.users, *node.users}))
            if not is_counter:
                raise CaptureError(
                    f"{name} writes its state {state.target} in place by {target}: layers may only update the "
                    "buffers of torch's own normalisation modules"
                )
            # A module that is called again counts its second batch on top of the first.
            node.replace_all_uses_with(state)
            graph.erase_node(node)
            continue
        packet = getattr(aten, target._schema.name.split("::")[1].rstrip("_"), None)
        functional = RENAMED.get(target, getattr(packet, target._overloadname, None))
        if functional is None or not isinstance(written, fx.Node):
            raise CaptureError(f"{name} has an in-place operator, {target}, that has no functional form (avoid it)")
        if other := _overlapping(node, memory):
            raise CaptureError(
                f"{name} writes {written.name} in place by {operator_name(node)} of {other.name}, which shares a part "
                "of its memory: the result depends on the order of the elements (clone() what is read)"
            )
        wholes = _wholes(written)
        if _has_other_readers(node, [written, *wholes], memory):
            raise CaptureError(
                f"{name} writes {written.name} in place and reads the same memory by another view: "
                "write out of place there (relu, not relu_)"
            )
        if target in RENAMED:
            node.args = _with_defaults(node)
        node.target = functional
        if target is aten.copy_.default:
            _copy(node, written)
        _redirect_readers(node, written)
        _update_wholes(graph, node, written, wholes, memory)
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "call_module") and not (node.users or updated_statistics(node)):
            graph.erase_node(node)
    graph.lint()


def _copy(node: fx.Node, written: fx.Node) -> None:
    """Replaces a copy by its source in the shape and dtype of ``written``: ``aten.copy`` has no gradient."""
    source = node.args[1]
    assert isinstance(source, fx.Node)
    with node.graph.inserting_before(node):
        spread = node.graph.call_function(aten.expand_as.default, (source, written))
    spread.meta = {**node.meta, "val": node.meta["val"].to(source.meta["val"].dtype)}
    node.target, node.args, node.kwargs = aten.type_as.default, (spread, written), {}


def _with_defaults(node: fx.Node) -> tuple[Any, ...]:
    """Returns an operator's arguments with its defaults, which another overload may lack: ``bernoulli_(p=0.5)``."""
    assert isinstance(node.target, torch._ops.OpOverload)
    positional = [argument for argument in node.target._schema.arguments if not argument.kwarg_only]
    return (*node.args, *(argument.default_value for argument in positional[len(node.args) :]))


def _is_foreign_write(node: fx.Node) -> bool:
    """Whether an operator that is not torch's own writes an argument; what else its name says is not known."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.namespace != "aten" and target._schema.is_mutable


def is_write(node: fx.Node) -> bool:
    """Whether an operator writes in place: ``relu_``, but not ``__and__``."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name.endswith("_") and schema.is_mutable


def memory_of(graph: fx.Graph) -> Memory:
    """Returns the memory to which each node refers: for a view that of the viewed tensor, else its own."""
    found: Memory = {}
    for node in graph.nodes:
        source = node.args[0] if node.args and _refers(node, found) else None
        found[node] = found[source] if isinstance(source, fx.Node) else node
    return found


def _refers(node: fx.Node, memory: Memory) -> bool:
    """Whether an operator's result is the memory of its first argument, or may be."""
    if node.target is operator.getitem:
        # Of several views, not of several results.
        return memory[node.all_input_nodes[0]] is not node.args[0]
    schema = getattr(node.target, "_schema", None)
    if schema is None or is_write(node):
        return schema is not None
    name = operator_name(node)
    if name in DROPOUTS:
        probability, trains = node.args[1:3]
        # One that drops nothing returns the tensor that it reads.
        return not (probability and trains)
    if name in ("to", "type_as"):
        return bool(node.all_input_nodes[0].meta["val"].dtype == node.meta["val"].dtype)
    return not schema.is_mutable and any(each.alias_info for each in schema.returns)


def _wholes(part: fx.Node) -> list[fx.Node]:
    """Returns the chain of tensors that a part was sliced from."""
    found = []
    while part.target in WHOLE_OF_PART and isinstance(part.args[0], fx.Node):
        part = part.args[0]
        found.append(part)
    return found


def _update_wholes(graph: fx.Graph, new: fx.Node, part: fx.Node, wholes: list[fx.Node], memory: Memory) -> None:
    """Inserts a new part into the tensors it was sliced from, for their later readers."""
    for whole in wholes:
        with graph.inserting_before(new.next):
            scatter = _scatter(graph, whole, new, part)
        memory[scatter] = memory[whole]
        _redirect_readers(scatter, whole)
        new, part = scatter, whole


def _scatter(graph: fx.Graph, whole: fx.Node, new: fx.Node, part: fx.Node) -> fx.Node:
    """Inserts the operators that replace a part of ``whole`` by ``new``, and returns the last one."""

    def call(function: Any, arguments: tuple[Any, ...], value: torch.Tensor, **options: Any) -> fx.Node:
        node = graph.call_function(function, arguments, options)
        node.meta = {**new.meta, "val": value}
        return node

    value = whole.meta["val"]
    if not value.is_complex():
        return call(WHOLE_OF_PART[part.target], (whole, new, *part.args[1:]), value, **part.kwargs)
    # Of complex numbers these operators have no gradient; as pairs of numbers they have one more dimension, the last.
    numbers = [call(aten.resolve_conj.default, (x,), x.meta["val"].resolve_conj()) for x in (whole, new)]
    pairs = [call(aten.view_as_real.default, (x,), torch.view_as_real(x.meta["val"])) for x in numbers]
    dim, *place = part.args[1:]
    scatter = call(
        WHOLE_OF_PART[part.target], (*pairs, dim % value.dim(), *place), torch.view_as_real(value), **part.kwargs
    )
    return call(aten.view_as_complex.default, (scatter,), value)


def _overlapping(node: fx.Node, memory: Memory) -> fx.Node | None:
    """Returns what an operator reads through another view of a part of the memory that it writes."""
    written = node.all_input_nodes[0]
    for other in node.all_input_nodes[1:]:
        if memory.get(other) is memory[written]:
            places, read = (_places(each.meta["val"]) for each in (written, other))
            if not torch.equal(places, read) and torch.isin(read.flatten(), places.flatten()).any():
                return other
    return None


def _places(view: torch.Tensor) -> torch.Tensor:
    """Returns the place in memory of each element of a view, for a batch of two."""
    shape, strides = ([value_at(x, 2) for x in each] for each in (view.shape, view.stride()))
    offset = value_at(view.storage_offset(), 2)
    length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return torch.arange(offset, offset + max(1, length)).as_strided(shape, strides)


def _has_other_readers(node: fx.Node, known: list[fx.Node], memory: Memory) -> bool:
    """Whether an operator after ``node`` reads the memory that it writes through a view other than ``known``."""
    first = memory[known[0]]
    others = [other for other, held in memory.items() if held is first and other not in known and other < node]
    return any(node < user for other in others for user in other.users)


def _redirect_readers(node: fx.Node, written: fx.Node) -> None:
    """Redirects users of ``written`` after ``node`` to ``node``, which holds the new value."""
    written.replace_all_uses_with(node, delete_user_cb=lambda user: node < user)

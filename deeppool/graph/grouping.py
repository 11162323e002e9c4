"""Operators → layers, in three steps.

1. Operators of one call of one leaf module are together (an attention module is one layer).
2. A *follower* (activation, normalisation, reshaping) joins the layer whose only reader it is, so
   convolution, batch norm and ReLU are one layer, as in DeepPool's profiles.
3. A value whose leading dimension is not the batch is no place to cut, because samples cannot be
   resharded there: the layers on both sides of it become one.
"""

import torch
from torch import fx

FOLLOWERS = frozenset(
    (
        "relu relu6 hardtanh hardswish hardsigmoid silu gelu mish sigmoid tanh leaky_relu elu softplus "
        "dropout feature_dropout batch_norm layer_norm group_norm instance_norm rms_norm softmax log_softmax "
        "flatten unflatten view _unsafe_view reshape permute transpose contiguous squeeze unsqueeze clone to "
        "type_as cross_entropy_loss mean select slice getitem"
    ).split()
)
"""Operators cheap enough beside a convolution or a product to be part of it."""

Groups = list[list[fx.Node]]


def group_into_layers(graph: fx.Graph, symbols: set[str]) -> Groups:
    """Nodes per layer, in a topological order; ``symbols`` stand for the batch in shapes."""
    return _cut_at_batch(_join_followers(_group_by_module(graph)), symbols)


def is_tensor(node: fx.Node) -> bool:
    """Whether a node's value is a tensor, or several."""
    return isinstance(node.meta.get("val"), torch.Tensor | tuple | list)


def _compute_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Nodes that depend on the data: not parameters, sizes, or what is made of these alone."""
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        depends = any(arg.op == "placeholder" or arg in found for arg in node.all_input_nodes)
        if node.op == "call_function" and is_tensor(node) and depends:
            found[node] = None
    return list(found)


def module_call(node: fx.Node) -> tuple[str, str]:
    """(identity of the call, path) of the innermost module that a node belongs to; the root's path is empty."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return "", ""
    key, (path, _) = list(stack.items())[-1]
    return ("", "") if key.startswith("_empty") else (key, path.removeprefix("L__self__").lstrip("."))


def _group_by_module(graph: fx.Graph) -> Groups:
    """Step 1: runs of operators in one call of a leaf module; every other operator alone."""
    nodes = _compute_nodes(graph)
    paths = {module_call(node)[1] for node in nodes}
    groups: Groups = []
    previous = None
    for node in nodes:
        call, path = module_call(node)
        leaf = path and not any(other.startswith(path + ".") for other in paths)
        picks_from_previous = groups and operator_name(node) == "getitem" and node.args[0] in groups[-1]
        if picks_from_previous or (leaf and call == previous):
            groups[-1].append(node)
        else:
            groups.append([node])
        previous = call if leaf else None
    return groups


def _join_followers(groups: Groups) -> Groups:
    """Step 2: a group of followers joins the group that it alone reads, if it alone reads it."""
    owner = {node: index for index, group in enumerate(groups) for node in group}
    for index, group in enumerate(groups):
        if not all(operator_name(node) in FOLLOWERS for node in group):
            continue
        sources = {owner[arg] for node in group for arg in node.all_input_nodes if arg in owner} - {index}
        if len(sources) != 1:
            continue
        (source,) = sources
        readers = {owner.get(user, -1) for node in groups[source] for user in node.users} - {source}
        if readers == {index}:
            groups[source].extend(group)
            owner.update(dict.fromkeys(group, source))
            groups[index] = []
    return [group for group in groups if group]


def _cut_at_batch(groups: Groups, symbols: set[str]) -> Groups:
    """Step 3: joins all groups from a value that is not batch-first to its last reader."""
    index = 0
    while index < len(groups):
        owner = {node: position for position, group in enumerate(groups) for node in group}
        last = index
        for node in groups[index]:
            if not _is_batch_first(node, symbols):
                last = max([last, *(owner.get(user, last) for user in node.users)])
        if last == index:
            index += 1
        else:
            groups[index : last + 1] = [[node for group in groups[index : last + 1] for node in group]]
    order = {node: position for position, node in enumerate(groups[0][0].graph.nodes)} if groups else {}
    return [sorted(group, key=order.__getitem__) for group in groups]


def _is_batch_first(node: fx.Node, symbols: set[str]) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.dim() > 0 and str(value.shape[0]) in symbols


def operator_name(node: fx.Node) -> str:
    """``conv2d`` of ``aten.conv2d.default``."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[1]
    return getattr(target, "__name__", str(target))

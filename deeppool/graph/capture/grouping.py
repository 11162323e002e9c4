"""Operators → layers, at the granularity asked for.

``operator``: every operator is a layer.

``module``: operators of one call of one leaf module are together (an attention module is one layer), and a
*follower* (activation, normalisation, reshaping) joins the layer whose only reader it is, so convolution,
batch norm and ReLU are one layer, as in DeepPool's profiles.

``block``: module layers of one call of a repeated container are together (see ``blocks``).

Then, whatever the granularity, three rules that a layer must keep to be placed on GPUs of its own:

1. A value whose leading dimension is not the batch is no place to cut, because samples cannot be
   resharded there: the layer that makes it and those that read it become one.
2. What is drawn at random without data (a mask of whole samples) is drawn where it is read: its readers are one.
3. No layer needs what is made of its own result: what lies on a path from a layer back to it joins it.

Every layer of a finer granularity lies within one layer of a coarser one, as the rules join only what they
must: the result is the finest partition that keeps them, and a finer start cannot give a coarser one.
"""

from collections.abc import Sequence

import networkx
import torch
from torch import fx

from deeppool.graph.capture.blocks import block_calls, module_call
from deeppool.graph.layer import Granularity

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


def group_into_layers(graph: fx.Graph, symbols: set[str], granularity: Granularity = "module") -> Groups:
    """Nodes per layer, in a topological order; ``symbols`` stand for the batch in shapes."""
    nodes = _compute_nodes(graph)
    if granularity == "operator":
        return _close([[node] for node in nodes], symbols)
    modules = _close(_join_followers(_group_by_module(nodes)), symbols)
    if granularity == "module":
        return modules
    return _close(_join(modules, block_calls(modules)), symbols)


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


def _group_by_module(nodes: list[fx.Node]) -> Groups:
    """Runs of operators in one call of a leaf module; every other operator alone."""
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
    """A group of followers joins the group that it alone reads, if it alone reads it."""
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


def _join(groups: Groups, numbers: Sequence[int | None]) -> Groups:
    """Groups of one number become one; those without stay alone."""
    joined: dict[tuple[bool, int], list[fx.Node]] = {}
    for index, (group, number) in enumerate(zip(groups, numbers, strict=True)):
        joined.setdefault((number is None, index if number is None else number), []).extend(group)
    return list(joined.values())


# -- what layers must keep --------------------------------------------------------------------------


def _close(groups: Groups, symbols: set[str]) -> Groups:
    """The finest partition coarser than ``groups`` that keeps the rules, its groups in a topological order."""
    edges = _edges(groups)
    owner = {node: index for index, group in enumerate(groups) for node in group}
    # Groups that must be one become a cycle of edges, which is all that the third rule must know.
    for node, index in owner.items():
        if not _is_batch_first(node, symbols):
            edges.add_edges_from((owner[user], index) for user in node.users if user in owner)
    for node in groups[0][0].graph.nodes if groups else ():
        if node not in owner and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            networkx.add_cycle(edges, _readers(node, owner))
    numbers: list[int | None] = [None] * len(groups)
    for cycle in networkx.strongly_connected_components(edges):
        for index in cycle:
            numbers[index] = min(cycle)
    position = {node: index for index, node in enumerate(groups[0][0].graph.nodes)} if groups else {}
    joined = [sorted(group, key=position.__getitem__) for group in _join(groups, numbers)]
    # Where the edges leave a choice, as in the program.
    order = networkx.lexicographical_topological_sort(_edges(joined), key=lambda index: position[joined[index][0]])
    return [joined[index] for index in order]


def _readers(node: fx.Node, owner: dict[fx.Node, int]) -> set[int]:
    """Groups that read a value of no group, or what is made of it alone."""
    found: set[int] = set()
    for user in node.users:
        found |= {owner[user]} if user in owner else _readers(user, owner)
    return found


def _edges(groups: Groups) -> "networkx.DiGraph[int]":
    """From each group to those that read it."""
    owner = {node: index for index, group in enumerate(groups) for node in group}
    found: networkx.DiGraph[int] = networkx.DiGraph()
    found.add_nodes_from(range(len(groups)))
    for node, index in owner.items():
        found.add_edges_from((index, owner[user]) for user in node.users if owner.get(user, index) != index)
    return found


def _is_batch_first(node: fx.Node, symbols: set[str]) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.dim() > 0 and str(value.shape[0]) in symbols


def operator_name(node: fx.Node) -> str:
    """``conv2d`` of ``aten.conv2d.default``."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[1]
    return getattr(target, "__name__", str(target))

"""Grouping of operators into layers at a given granularity.

``operator``: every operator is a layer.

``module``: operators of one call of one leaf module form a layer (an attention module is one layer), and a *follower*
(activation, normalisation, reshaping) joins the layer whose only reader it is, so convolution, batch norm and ReLU are
one layer, as in DeepPool's profiles.

``block``: module layers of one call of a repeated container form a layer (see ``blocks``).

At every granularity, five rules make layers that can be placed on separate GPUs:

1. The layer that produces a value whose leading dimension is not the batch is merged with its readers, because
   such a value cannot be resharded by samples; nor can one that depends on which samples are together, as positions
   in the batch and what is sorted by them, complex numbers, which backends do not send, and memory that its reader
   fills with random numbers, which has no derivative.
2. Readers of random values that depend on no data (a mask of whole samples) are merged, since all must see the
   same values; so are those of a state that is written without data (the vectors of a spectral norm).
3. Layers that update and read the same running statistics are merged, because one reads what another wrote.
4. A layer from which no path leads to the loss is merged with one that it reads: it only updates running statistics.
5. Layers on a cycle are merged.

The result is the finest partition that satisfies the rules, so every layer of a finer granularity lies within one
layer of a coarser one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from deeppool.graph.capture.batch_sizes import multiple_of_batch
from deeppool.graph.capture.blocks import block_calls, module_call, modules_with_inner_calls
from deeppool.graph.capture.sample_layout import SAMPLES
from deeppool.graph.layer import Granularity

if TYPE_CHECKING:
    import networkx

FOLLOWERS = frozenset(
    (
        "relu relu6 hardtanh hardswish hardsigmoid silu gelu mish sigmoid tanh leaky_relu elu softplus "
        "dropout feature_dropout batch_norm layer_norm group_norm instance_norm rms_norm softmax log_softmax "
        "flatten unflatten view _unsafe_view reshape permute transpose contiguous squeeze unsqueeze clone to "
        "type_as cross_entropy_loss mean select slice getitem detach"
    ).split()
)
"""Operators that are cheap enough to be part of the layer they follow."""

RANDOM_FILLS = frozenset("bernoulli uniform exponential normal_functional geometric cauchy log_normal random".split())
"""Operators that read only the shape of a tensor: ``x.new_empty(…).bernoulli_()`` without the in-place write."""

Groups = list[list[fx.Node]]


def group_into_layers(graph: fx.Graph, symbols: set[str], granularity: Granularity = "module") -> Groups:
    """Returns the nodes of each layer in a topological order; ``symbols`` are those of the batch in shapes."""
    nodes = _compute_nodes(graph)
    if granularity == "operator":
        return _close([[node] for node in nodes], symbols)
    modules = _close(_join_followers(_group_by_module(nodes)), symbols)
    if granularity == "module":
        return modules
    return _close(_join(modules, block_calls(modules)), symbols)


def is_tensor(node: fx.Node) -> bool:
    """Whether a node's value is one or several tensors."""
    return isinstance(node.meta.get("val"), torch.Tensor | tuple | list)


def _compute_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Nodes that depend on the data, also through running statistics, not only on parameters and sizes."""
    found: dict[fx.Node, None] = {}
    changing = {statistics for node in graph.nodes for statistics in updated_statistics(node)}
    for node in graph.nodes:
        depends = any(arg.op == "placeholder" or arg in found or arg in changing for arg in node.all_input_nodes)
        if node.op == "call_function" and is_tensor(node) and depends:
            found[node] = None
    return list(found)


def _group_by_module(nodes: list[fx.Node]) -> Groups:
    """Groups consecutive operators of one call of a leaf module; other operators stay single."""
    containers = modules_with_inner_calls(nodes)
    groups: Groups = []
    previous = None
    for node in nodes:
        call, path = module_call(node)
        leaf = path and path not in containers
        picks_from_previous = groups and operator_name(node) == "getitem" and node.args[0] in groups[-1]
        if picks_from_previous or (leaf and call == previous):
            groups[-1].append(node)
        else:
            groups.append([node])
        previous = call if leaf else None
    return groups


def _join_followers(groups: Groups) -> Groups:
    """Merges a group of followers into its only source, if it is that source's only reader."""
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
    """Merges groups of equal number; those without a number stay single."""
    joined: dict[tuple[bool, int], list[fx.Node]] = {}
    for index, (group, number) in enumerate(zip(groups, numbers, strict=True)):
        joined.setdefault((number is None, index if number is None else number), []).extend(group)
    return list(joined.values())


# -- the rules --------------------------------------------------------------------------


def _close(groups: Groups, symbols: set[str]) -> Groups:
    """Returns the finest partition coarser than ``groups`` that satisfies the rules, in a topological order."""
    import networkx

    edges = _edges(groups)
    owner = {node: index for index, group in enumerate(groups) for node in group}
    # Groups to merge by the first four rules become cycles of edges, which the fifth rule merges.
    for node, index in owner.items():
        if not _can_be_sent(node, symbols):
            edges.add_edges_from((owner[user], index) for user in node.users if user in owner)
    for node in groups[0][0].graph.nodes if groups else ():
        if node not in owner and _differs_between_runs(node):
            networkx.add_cycle(edges, _readers(node, owner))
        if any(node in updated_statistics(user) for user in node.users):
            networkx.add_cycle(edges, {owner[user] for user in node.users if user in owner})
    for index, host in _hosts(groups, edges).items():
        networkx.add_cycle(edges, (index, host))
    numbers: list[int | None] = [None] * len(groups)
    for cycle in networkx.strongly_connected_components(edges):
        for index in cycle:
            numbers[index] = min(cycle)
    position = {node: index for index, node in enumerate(groups[0][0].graph.nodes)} if groups else {}
    joined = [sorted(group, key=position.__getitem__) for group in _join(groups, numbers)]
    # Ties are ordered as in the program.
    order = networkx.lexicographical_topological_sort(_edges(joined), key=lambda index: position[joined[index][0]])
    return [joined[index] for index in order]


def _readers(node: fx.Node, owner: dict[fx.Node, int]) -> set[int]:
    """Returns the groups that read a value outside all groups, directly or through other such values."""
    found: set[int] = set()
    for user in node.users:
        found |= {owner[user]} if user in owner else _readers(user, owner)
    return found


def updated_statistics(node: fx.Node) -> list[fx.Node]:
    """Returns the running statistics that an operator updates, if it is a normalisation that does."""
    if node.target not in (torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default):
        return []
    *_, mean, variance, by_batch, _momentum, _eps, _cudnn = node.args
    return [each for each in (mean, variance) if by_batch and isinstance(each, fx.Node)]


def _hosts(groups: Groups, edges: "networkx.DiGraph[int]") -> dict[int, int]:
    """Returns another group for each one that no path to the last operator leaves: that of the latest value it reads.

    Statistics that such a group updates are all that counts of it; what reads only data joins the first of the others.
    """
    import networkx

    owner = {node: index for index, group in enumerate(groups) for node in group}
    last = max(owner, default=None)
    if last is None:
        return {}
    read = networkx.ancestors(edges, owner[last]) | {owner[last]}
    found = {}
    for index in set(edges) - read:
        sources = [arg for node in groups[index] for arg in node.all_input_nodes if owner.get(arg, index) != index]
        found[index] = owner[max(sources)] if sources else min(read)
    return found


def _edges(groups: Groups) -> "networkx.DiGraph[int]":
    """Returns the graph with an edge from each group to its readers."""
    import networkx

    owner = {node: index for index, group in enumerate(groups) for node in group}
    found: networkx.DiGraph[int] = networkx.DiGraph()
    found.add_nodes_from(range(len(groups)))
    for node, index in owner.items():
        found.add_edges_from((index, owner[user]) for user in node.users if owner.get(user, index) != index)
    return found


def _can_be_sent(node: fx.Node, symbols: set[str]) -> bool:
    """Whether a value can be resharded: the samples of one tensor of real numbers."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.is_complex():
        return False
    if any(operator_name(user) in RANDOM_FILLS for user in node.users):
        return False
    # Samples are not followed through the loss, of which only positions in the batch are taken not to be theirs.
    if SAMPLES not in node.meta and not (is_loss(node) and value.is_floating_point()):
        return False
    return multiple_of_batch(value.shape[0], symbols) == 1


def _differs_between_runs(node: fx.Node) -> bool:
    """Whether a second run of an operator gives another value: it draws random numbers, or writes a state."""
    operator = node.target
    return isinstance(operator, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in operator.tags or operator._schema.is_mutable
    )


def is_loss(node: fx.Node) -> bool:
    """Whether an operator belongs to the appended loss."""
    return "loss" in (node.meta.get("nn_module_stack") or {})


def operator_name(node: fx.Node) -> str:
    """Returns the name of an operator: ``conv2d`` for ``aten.conv2d.default``."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[1]
    return getattr(target, "__name__", str(target))

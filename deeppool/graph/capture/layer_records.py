"""Construction of :class:`Layer` records from groups of nodes."""

import hashlib
import itertools
import math
from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from deeppool.graph.capture.activation_memory import saved_bytes
from deeppool.graph.capture.blocks import module_call, modules_with_inner_calls
from deeppool.graph.capture.grouping import FOLLOWERS, operator_name
from deeppool.graph.capture.regions import AUTOCAST
from deeppool.graph.layer import Granularity, Layer


def sample_bytes(node: fx.Node) -> int:
    """Returns the bytes per sample of a batch-first value."""
    value = node.meta["val"]
    return math.prod(map(int, value.shape[1:])) * int(value.element_size())


def describe_layers(
    program: fx.GraphModule, groups: tuple[tuple[fx.Node, ...], ...], granularity: Granularity = "module"
) -> tuple[Layer, ...]:
    """Returns one record per group, in order."""
    owner = {node: index for index, group in enumerate(groups) for node in group}
    # A parameter tied under two names is one parameter of the state dict; get_attr finds it by either.
    canonical = {
        id(parameter): name for name, parameter in reversed(list(program.named_parameters(remove_duplicate=False)))
    }
    reached = {id(attrgetter(str(node.target))(program)) for node in _reached(program.graph) if node.op == "get_attr"}
    # torch's optimizers leave out what no gradient reaches: zeros in its place would decay it.
    trainable = {
        name for name, parameter in program.named_parameters() if parameter.requires_grad and id(parameter) in reached
    }
    saved = saved_bytes(program, groups, autocast=False)
    saved_by_autocast = saved_bytes(program, groups, autocast=True)
    containers = modules_with_inner_calls(program.graph.nodes)
    names: dict[str, int] = {}
    layers = []
    for index, group in enumerate(groups):
        sources: dict[fx.Node, int] = {}
        parameters: dict[str, int] = {}
        for node in group:
            for arg in node.all_input_nodes:
                if arg in owner and owner[arg] != index:
                    sources[arg] = owner[arg]
                for attribute in _attributes(arg, owner):
                    value = attrgetter(attribute)(program)
                    if isinstance(value, nn.Parameter) and canonical[id(value)] in trainable:
                        parameters[canonical[id(value)]] = value.numel() * value.element_size()
        predecessors = sorted(set(sources.values()))
        layers.append(
            Layer(
                name=_unique(_layer_name(group, containers, granularity == "block"), names),
                operators=tuple(operator_name(node) for node in group),
                predecessors=tuple(predecessors),
                input_bytes=tuple(sum(sample_bytes(n) for n, i in sources.items() if i == p) for p in predecessors),
                parameter_bytes=sum(parameters.values()),
                parameters=tuple(parameters),
                parameter_sizes=tuple(parameters.values()),
                signature=_signature(program, group, owner),
                activation_bytes=saved[index],
                autocast_activation_bytes=saved_by_autocast[index],
            )
        )
    return tuple(layers)


def _reached(graph: fx.Graph) -> set[fx.Node]:
    """Returns the nodes from which a path without ``detach`` and integers leads to the loss."""
    found, waiting = set[fx.Node](), [graph.output_node()]
    while waiting:
        for node in waiting.pop().all_input_nodes:
            value = node.meta.get("val")
            counts = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
            if not (node in found or counts or node.target is torch.ops.aten.detach.default):
                found.add(node)
                waiting.append(node)
    return found


def _attributes(node: fx.Node, owner: dict[fx.Node, int]) -> Iterator[str]:
    """Yields the names of the parameters and buffers that an argument outside all layers depends on."""
    if node.op == "get_attr":
        yield str(node.target)
    elif node not in owner and node.op == "call_function":
        for arg in node.all_input_nodes:
            yield from _attributes(arg, owner)


def _layer_name(group: tuple[fx.Node, ...], containers: Collection[str], may_be_block: bool) -> str:
    """Names a layer by its module, if no other module runs inside that, or else by its first operator too."""
    anchors = [node for node in group if operator_name(node) not in FOLLOWERS] or [group[0]]
    path = module_call(anchors[0])[1]
    alone = all(module_call(node)[1] == path for node in anchors)
    if may_be_block and not alone and (enclosing := _enclosing(anchors)):
        return enclosing
    is_leaf_name = alone and path and anchors[0].meta["nn_module_stack"] and path not in containers
    return path if is_leaf_name else ".".join(filter(None, (path, operator_name(anchors[0]))))


def _enclosing(nodes: list[fx.Node]) -> str:
    """Returns the path of the innermost module that encloses all nodes; empty: the model itself."""
    paths = [module_call(node)[1].split(".") for node in nodes]
    return ".".join(parts[0] for parts in itertools.takewhile(lambda p: len(set(p)) == 1, zip(*paths, strict=False)))


def _unique(name: str, seen: dict[str, int]) -> str:
    seen[name] = seen.get(name, 0) + 1
    return name if seen[name] == 1 else f"{name}#{seen[name]}"


def _signature(program: fx.GraphModule, group: tuple[fx.Node, ...], owner: dict[fx.Node, int]) -> str:
    """Hashes operators, constants, shapes, and which inputs need gradients."""
    local = {node: f"%{position}" for position, node in enumerate(group)}

    def describe(node: fx.Node) -> str:
        if node in local:
            return local[node]
        value = node.meta.get("val")
        if node.op == "get_attr":
            attribute = attrgetter(str(node.target))(program)
            return f"attribute{tuple(attribute.shape)}{attribute.dtype}{attribute.requires_grad}"
        kind = "activation" if node in owner else node.op
        return f"{kind}{tuple(value.shape)}{value.dtype}" if isinstance(value, torch.Tensor) else f"{kind}{value}"

    def named(argument: Any) -> Any:
        if isinstance(argument, torch.device):
            return _Named("device")  # the device of the capture does not matter
        return _Named(describe(argument)) if isinstance(argument, fx.Node) else argument

    parts = [(_operation(node), repr(pytree.tree_map(named, (node.args, node.kwargs)))) for node in group]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _operation(node: fx.Node) -> str:
    """Returns an operator's full name, with the autocast that it runs under if that is not the caller's."""
    _, *modes = node.meta.get(AUTOCAST, (None,))
    return f"{node.target}{modes or ''}"


class _Named(str):
    """Text for a node in a signature, whose repr has no quotes."""

    __slots__ = ()
    __repr__ = str.__str__

"""Constant folding: values that depend on no data, batch, weight or random numbers are computed once.

Swin's attention mask, for example, is a tensor of zeros into which every forward writes the same numbers window by
window. Such writes through views have no functional form, and a layer run alone would miss them.
"""

from collections.abc import Collection
from operator import attrgetter
from typing import Any

import torch
from torch import fx

FROM_A_TENSOR = ("new_zeros", "new_ones", "new_full", "new_empty")
"""Factories that read only the dtype and device of a tensor."""


def fold_constants(program: fx.GraphModule, literals: Collection[str]) -> None:
    """Replaces constant tensors that other nodes read by buffers of ``program`` with their current values.

    Args:
        program: changed in place.
        literals: attributes of ``program`` that hold literal tensors of the model's code, not its state.
    """
    graph = program.graph
    constants = _constants(graph, literals)
    values: dict[fx.Node, Any] = {}
    buffers: dict[tuple[fx.Node, int], fx.Node] = {}
    for node in list(graph.nodes):
        if node in constants:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda arg: _value(arg, values))
            values[node] = attrgetter(node.target)(program) if node.op == "get_attr" else node.target(*args, **kwargs)
            continue
        for source in node.all_input_nodes:
            value = values.get(source)
            if isinstance(value, torch.Tensor):
                # Later in-place writes change the tensor and its version.
                key = source, value._version
                if key not in buffers:
                    buffers[key] = _buffer(program, node, source, value)
                node.replace_input_with(source, buffers[key])
    graph.eliminate_dead_code(lambda node: node not in constants)


def _constants(graph: fx.Graph, literals: Collection[str]) -> set[fx.Node]:
    found = {node for node in graph.nodes if node.op == "get_attr" and node.target in literals}
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.split("::")[1]
        sources = node.all_input_nodes[1:] if name in FROM_A_TENSOR else node.all_input_nodes
        random = torch.Tag.nondeterministic_seeded in node.target.tags
        if not random and _is_fixed(node) and all(source in found for source in sources):
            found.add(node)
    return found


def _is_fixed(node: fx.Node) -> bool:
    """Whether a node's value is one tensor of static shape."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in value.shape)


def _value(arg: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Returns the value of an argument; for a factory's tensor an empty one of its dtype and device."""
    if arg in values:
        return values[arg]
    example = arg.meta["val"]
    return torch.empty(0, dtype=example.dtype, device=example.device)


def _buffer(program: fx.GraphModule, before: fx.Node, source: fx.Node, value: torch.Tensor) -> fx.Node:
    name = f"constant_{source.name}_{value._version}"
    program.register_buffer(name, value.detach().clone(), persistent=False)
    with program.graph.inserting_before(before):
        node = program.graph.get_attr(name)
    node.meta["val"] = source.meta["val"]
    return node

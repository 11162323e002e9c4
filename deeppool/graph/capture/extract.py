"""Extraction of some layers of a captured model as a module, for profiling and for pipeline stages."""

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from deeppool.graph.capture.batch_sizes import multiple_of_batch
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.grouping import is_tensor
from deeppool.graph.capture.index_ranges import value_count
from deeppool.graph.capture.regions import surround_by_autocast

LAYER = "deeppool_layer"
"""Key of a node's metadata: the name of its layer, for the ranges of profilers."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Sub-program of some layers."""

    module: fx.GraphModule
    """``module(batch, *inputs)`` returns the tuple of ``outputs``; shares parameters with the model."""
    inputs: tuple[fx.Node, ...]
    """Values computed by earlier layers, and placeholders of the program (data, target)."""
    outputs: tuple[fx.Node, ...]
    """Values read by other layers, or the loss."""

    def replace(self, node: fx.Node, name: str, module: torch.nn.Module, arguments: tuple[fx.Node, ...]) -> None:
        """Replaces an operator of its module by a module of that name; the caller recompiles it."""
        self.module.add_submodule(name, module)
        with self.module.graph.inserting_before(node):
            replacement = self.module.graph.call_module(name, arguments)
        replacement.meta.update(node.meta)
        node.replace_all_uses_with(replacement)
        self.module.graph.erase_node(node)


def extract(captured: CapturedModel, layers: Iterable[int]) -> Segment:
    """Extracts the sub-program of some layers, with the sizes and parameters that depend on no data.

    The batch is an argument, because the model may read it from a tensor outside the segment.
    """
    layer_of = {node: captured.graph.layers[layer].name for layer in sorted(layers) for node in captured.nodes[layer]}
    chosen = list(layer_of)
    position = {node: index for index, node in enumerate(captured.program.graph.nodes)}
    chosen.sort(key=position.__getitem__)
    inside = set(chosen)
    graph = fx.Graph()
    batch = graph.placeholder("batch")
    inputs = _external_inputs(captured, chosen)
    copies = {node: graph.placeholder(node.name) for node in inputs}

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:
            multiple = multiple_of_batch(node.meta.get("val"), captured.batch_symbols)
            if multiple is not None:
                copies[node] = batch if multiple == 1 else graph.call_function(operator.mul, (batch, multiple))
            else:
                copies[node] = graph.node_copy(node, copy)
        return copies[node]

    for node in chosen:
        copy(node).meta[LAYER] = layer_of[node]
    outputs = [node for node in chosen if any(user not in inside for user in node.users)]
    graph.output(tuple(copies[node] for node in outputs))
    surround_by_autocast(graph)
    return Segment(fx.GraphModule(captured.program, graph), tuple(inputs), tuple(outputs))


def _external_inputs(captured: CapturedModel, chosen: list[fx.Node]) -> list[fx.Node]:
    """Returns the data-dependent tensors of other layers, in order of first use."""
    owned = {node for group in captured.nodes for node in group}
    inside = set(chosen)
    found: dict[fx.Node, None] = {}
    for node in chosen:
        for arg in node.all_input_nodes:
            if arg not in inside and is_tensor(arg) and (arg in owned or arg.op == "placeholder"):
                found[arg] = None
    return list(found)


def example_inputs(segment: Segment, batch: int, device: torch.device) -> list[torch.Tensor]:
    """Draws random inputs of a segment.

    Activations require gradients, as in training; data and targets do not. Tokens and targets are drawn from the whole
    vocabulary: an embedding of which only two rows are read would be too fast.
    """
    tensors = []
    for node in segment.inputs:
        value = node.meta["val"]
        shape = [batch, *(int(size) for size in value.shape[1:])]
        if value.is_floating_point():
            # Targets may have to be probabilities.
            draw = torch.rand if node.op == "placeholder" and node.name == "target" else torch.randn
            tensor = draw(shape, dtype=value.dtype, device=device)
            tensors.append(tensor.requires_grad_(node.op != "placeholder"))
        else:
            tensors.append(torch.randint(value_count(node), shape, dtype=value.dtype, device=device))
    return tensors

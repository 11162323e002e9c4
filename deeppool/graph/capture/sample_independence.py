"""Refusal of models whose samples depend on each other, such as by a mean over the batch.

Each GPU computes some of the samples, so such a model would train differently on each number of GPUs. The dimension
that counts samples is followed from the inputs to the loss: an operator keeps the samples apart by a rule
(``sample_rules``), or else by trial on numbers (``sample_trials``).

Integers that depend on the batch are not refused but followed to their readers, with which they are tried together:
``x[torch.arange(batch), lengths]`` reads each sample's own entries. So are numbers that are computed with such integers
and not read outside of their module: a mixture of experts sorts tokens by expert and restores their order.
"""

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from deeppool.errors import CaptureError
from deeppool.graph.capture.blocks import module_call
from deeppool.graph.capture.grouping import is_loss, is_tensor, operator_name
from deeppool.graph.capture.sample_layout import SAMPLES, Layout, Samples
from deeppool.graph.capture.sample_rules import is_size, prove
from deeppool.graph.capture.sample_trials import find_layouts

REORDERS = ("index", "gather", "scatter")
"""Beginnings of the names of operators that can restore the order of samples; others need no trial."""


def check_sample_independence(program: fx.GraphModule, name: str) -> None:
    """Raises if what the loss reads of a sample depends on other samples, or on their number.

    Nodes' metadata state where they count samples.
    """
    layouts: dict[fx.Node, Any] = {}
    for node in program.graph.nodes:
        if not is_tensor(node) or is_loss(node):
            continue
        if node.op in ("placeholder", "get_attr"):
            layouts[node] = Samples(0) if node.op == "placeholder" else None
        else:
            region = _region(node, layouts)
            if _counts_indices(node, region, layouts):
                raise _refusal(node, name, "leave scale_grad_by_freq False")
            within = _is_integer(region[0]) and _is_read_within(node, module_call(region[0])[1])
            if within and not _is_integer(node) and not operator_name(node).startswith(REORDERS):
                continue
            found = _find(region, layouts)
            if found is not None:
                layouts[node] = tuple(found) if isinstance(node.meta["val"], tuple | list) else found[0]
                node.meta[SAMPLES] = layouts[node]
            elif isinstance(node.meta["val"], tuple | list):
                # Each output is tried alone: of an embedding_bag the model reads the first one.
                continue
            elif not (within or _is_integer(node)) or any(is_loss(user) for user in node.users):
                raise _refusal(region[0], name)


def _counts_indices(node: fx.Node, region: list[fx.Node], layouts: dict[fx.Node, Any]) -> bool:
    """Whether a gradient is divided by how often the batch has an index, as no forward shows."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    read = [arg for member in region for arg in member.all_input_nodes]
    return bool(given.get("scale_grad_by_freq")) and any(layouts.get(arg) is not None or is_size(arg) for arg in read)


def _region(node: fx.Node, layouts: dict[fx.Node, Any]) -> list[fx.Node]:
    """Returns the operators without a layout that a value depends on, in execution order, and its own."""
    found: dict[fx.Node, None] = {}

    def visit(member: fx.Node) -> None:
        for arg in member.all_input_nodes:
            if is_tensor(arg) and arg not in layouts and arg not in found:
                visit(arg)
        found[member] = None

    visit(node)
    return list(found)


def _find(region: list[fx.Node], layouts: dict[fx.Node, Any]) -> list[Layout] | None:
    """Returns where the outputs of a region's last operator count samples; None if samples depend on each other."""
    read = dict.fromkeys(arg for member in region for arg in member.all_input_nodes)
    inputs = {arg: layouts[arg] for arg in read if arg in layouts}
    node = region[-1]
    values = _values(node)
    if len(region) == 1:
        if operator_name(node) == "getitem":
            return [inputs[node.all_input_nodes[0]][node.args[1]]]
        if set(inputs.values()) <= {None} and not any(is_size(arg) for arg in read):
            return [None] * len(values)
        proven = prove(node, inputs, values)
        if proven is not None:
            return proven
    return find_layouts(region, inputs, values)


def _values(node: fx.Node) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(node.meta["val"]) if isinstance(value, torch.Tensor)]


def _is_integer(node: fx.Node) -> bool:
    return not any(value.is_floating_point() or value.is_complex() for value in _values(node))


def _is_read_within(node: fx.Node, path: str) -> bool:
    """Whether all readers of a value belong to a module other than the whole model, or to modules inside it."""
    return path != "" and all(f"{module_call(user)[1]}.".startswith(f"{path}.") for user in node.users)


def _refusal(
    node: fx.Node,
    name: str,
    remedy: str = "compute it for each sample alone, in loss= if it is a mean over the samples, or by torch.nn's "
    "BatchNorm, whose statistics per GPU are stated",
) -> CaptureError:
    path = module_call(node)[1]
    where = f" in {path}" if path else ""
    return CaptureError(
        f"{name} makes samples depend on each other{where}, by {operator_name(node)}: each GPU has only its own "
        f"samples, so every number of GPUs would train differently ({remedy})"
    )

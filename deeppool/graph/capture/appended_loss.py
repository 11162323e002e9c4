"""Appends the loss to a captured program, which then maps (inputs, target) to the loss."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from deeppool.errors import CaptureError
from deeppool.graph.capture.export import EXAMPLE_BATCH, quiet
from deeppool.graph.capture.losses import classification_loss, main_output, token_loss

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


class _LossModule(nn.Module):
    """Loss of a model's flattened outputs: export has no dynamic shapes for every record type that holds them."""

    def __init__(self, loss: Loss, structure: pytree.TreeSpec) -> None:
        super().__init__()
        self.loss, self.structure = loss, structure

    def forward(self, *outputs_and_target: Any) -> torch.Tensor:
        *outputs, target = outputs_and_target
        return self.loss(pytree.tree_unflatten(outputs, self.structure), target)


def append_loss(program: fx.GraphModule, loss: Loss | None, name: str) -> set[str]:
    """Appends the loss to ``program``; returns the loss's symbols for the batch."""
    graph = program.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    codegen: Any = graph._codegen
    values = pytree.tree_leaves(output.args)
    examples = [_example(value) for value in values]
    structure = codegen.pytree_info.out_spec
    scores = main_output(pytree.tree_unflatten(examples, structure))
    if not isinstance(scores, torch.Tensor) or scores.dim() < 1:
        raise CaptureError(
            f"{name} returns no tensor of samples first, expected class scores of shape (batch, classes, …) "
            "(return the scores first, or as .logits)"
        )
    of_tokens = _scores_tokens(program, scores)
    loss = loss or (token_loss if of_tokens else classification_loss)
    target = torch.zeros(scores.shape[:-1] if of_tokens else (scores.shape[0], *scores.shape[2:]), dtype=torch.int64)
    given = *examples, target
    dynamic = tuple({0: torch.export.Dim.DYNAMIC} if isinstance(leaf, torch.Tensor) else None for leaf in given)
    try:
        with quiet():
            program_of_loss = torch.export.export(
                _LossModule(loss, structure), given, dynamic_shapes=(dynamic,), strict=False
            )
    except Exception as error:
        raise CaptureError(
            f"the loss cannot take the outputs of {name}, of shape {tuple(scores.shape)}: "
            f"{str(error).strip().splitlines()[0]} (give loss=, a function of outputs and target)"
        ) from error
    loss_graph = program_of_loss.module(check_guards=False).graph
    mapping: dict[fx.Node, Any] = {}
    placeholders = [node for node in loss_graph.nodes if node.op == "placeholder"]
    symbols = {str(node.meta["val"].shape[0]) for node in placeholders if _is_batched(node)}
    mapping.update(zip(placeholders[:-1], values, strict=True))
    last_input = [node for node in graph.nodes if node.op == "placeholder"][-1]
    with graph.inserting_after(last_input):
        target_node = graph.placeholder("target")
        target_node.meta["val"] = placeholders[-1].meta["val"]
    mapping[placeholders[-1]] = target_node
    with graph.inserting_before(output):
        result = graph.graph_copy(loss_graph, mapping)
    while isinstance(result, tuple | list):
        result = result[0]
    graph.erase_node(output)
    graph.output(result)
    graph.set_codegen(fx.graph.CodeGen())
    for original, copy in mapping.items():
        if original.op == "call_function":
            copy.meta["nn_module_stack"] = {"loss": ("loss", "loss")}
    program.recompile()
    return symbols


def _example(value: Any) -> Any:
    """Returns zeros for an output whose first dimension is the batch; None for other tensors, which no loss reads."""
    found = value.meta.get("val") if isinstance(value, fx.Node) else None
    if not isinstance(found, torch.Tensor):
        return value
    fixed = _is_batched(value) and all(isinstance(size, int) for size in found.shape[1:])
    return torch.zeros([EXAMPLE_BATCH, *found.shape[1:]], dtype=found.dtype) if fixed else None


def _is_batched(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() > 0 and isinstance(value.shape[0], torch.SymInt)


def _scores_tokens(program: fx.GraphModule, scores: torch.Tensor) -> bool:
    """Whether an input is a sequence of tokens and the scores have one position per token in dim 1."""
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    tokens = [x for x in inputs if x.dtype in (torch.int64, torch.int32) and x.dim() == 2]
    return scores.dim() == 3 and any(scores.shape[1] == x.shape[1] for x in tokens)

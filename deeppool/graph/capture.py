"""``nn.Module`` → :class:`CapturedModel`, by torch.export.

The model is exported with a dynamic batch, its loss appended, its in-place writes removed, its operators
grouped into layers (see ``grouping``) and described (see ``describe``).
"""

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from deeppool.errors import CaptureError
from deeppool.graph.describe import describe_layers
from deeppool.graph.grouping import group_into_layers
from deeppool.graph.in_place import remove_in_place
from deeppool.graph.layer import LayerGraph
from deeppool.graph.losses import classification_loss, main_output
from deeppool.graph.workloads import build_model, find_workload

if TYPE_CHECKING:
    from torch.export import ExportedProgram

EXAMPLE_BATCH = 3
"""Odd and small: a model that fixes its batch, or needs an even one, shows it."""

FIXED_BATCH = ("specialized", "Constraints violated", "inferred a static shape")
"""How torch.export says that a model has its batch as a number in it."""

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class CapturedModel:
    """A model as data and as a program, layer by layer."""

    graph: LayerGraph
    program: fx.GraphModule
    """Maps (inputs, target) to the mean loss; shares the parameters and buffers of ``source``."""
    nodes: tuple[tuple[fx.Node, ...], ...]
    """Per layer the nodes of ``program`` that compute it, in execution order."""
    batch_symbols: frozenset[str]
    """Names of the symbols that stand for the batch in the shapes of ``program``."""
    source: nn.Module
    """The model that was captured."""

    def __str__(self) -> str:
        return str(self.graph)


def capture(
    model: nn.Module | str,
    input_shape: tuple[int, ...] | None = None,
    *,
    input_dtype: torch.dtype = torch.float32,
    loss: Loss = classification_loss,
    seed: int = 0,
) -> CapturedModel:
    """Captures a model and its loss as a static graph of layers.

    Args:
        model: a module, in the mode in which it will train; a workload's name; ``package.module:callable``.
        input_shape: of one sample, without the batch; a named workload has its own.
        input_dtype: of the input.
        loss: maps (outputs, target) to the mean over the samples; target holds class indices.
        seed: of the weights, when ``model`` is a name.

    Raises:
        CaptureError: unknown model, wrong input shape, data-dependent control flow, a fixed batch.
    """
    if isinstance(model, str):
        workload = find_workload(model)
        name, input_shape = model, tuple(input_shape or workload.input_shape)
        module = build_model(model, seed)
    else:
        name, module = type(model).__name__, model
    if not input_shape or any(size < 1 for size in input_shape):
        raise CaptureError(
            f"input_shape of {name} is {input_shape}, expected the positive sizes of one sample (for example 3,224,224)"
        )
    exported = _export_model(module, name, tuple(input_shape), input_dtype)
    program = exported.module(check_guards=False)
    assert isinstance(program, fx.GraphModule)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    symbols = {str(inputs[0].meta["val"].shape[0])}
    symbols |= _append_loss(program, loss, name)
    # Export's check of the inputs knows nothing of the target.
    program._forward_pre_hooks.clear()
    program._forward_pre_hooks_with_kwargs.clear()
    remove_in_place(program.graph, name)
    program.recompile()
    nodes = tuple(tuple(group) for group in group_into_layers(program.graph, symbols))
    layers = describe_layers(program, nodes)
    size = sum(p.numel() * p.element_size() for p in program.parameters() if p.requires_grad)
    graph = LayerGraph(name, tuple(input_shape), layers, size)
    return CapturedModel(graph, program, nodes, frozenset(symbols), module)


# -- export -----------------------------------------------------------------------------------------


def _export_model(module: nn.Module, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> "ExportedProgram":
    """torch.export with a dynamic batch, and its many ways to fail told in one line each."""
    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    example = torch.zeros(EXAMPLE_BATCH, *shape, dtype=dtype, device=device)
    path: list[str] = []
    try:
        with _quiet(), _tracking(module, path):
            return torch.export.export(
                module,
                (example,),
                strict=False,
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                prefer_deferred_runtime_asserts_over_guards=True,
            )
    except Exception as error:
        where = f" in {path[-1]}" if path and path[-1] else ""
        text = str(error).strip().splitlines()
        kind = type(error).__name__
        if "DataDependent" in kind or "data-dependent" in str(error):
            raise CaptureError(
                f"{name} has control flow that depends on data{where}, at {_user_line(error)}: "
                "the graph must be static (replace the branch by torch.where or torch.cond)"
            ) from error
        if any(phrase in str(error) for phrase in FIXED_BATCH):
            raise CaptureError(
                f"{name} fixes its batch to {EXAMPLE_BATCH} samples{where}: it must take any batch "
                "(use x.shape[0], not a number, in view and reshape)"
            ) from error
        raise CaptureError(
            f"{name} cannot take a sample of shape {shape}{where}: {text[0] if text else kind} "
            "(is it the shape of one sample, without the batch?)"
        ) from error


@contextlib.contextmanager
def _tracking(module: nn.Module, path: list[str]) -> Iterator[None]:
    """Keeps in ``path`` the modules that are running; after an error it ends with the one that raised."""
    names = {id(child): name for name, child in module.named_modules()}

    def enter(child: nn.Module, _: Any) -> None:
        path.append(names[id(child)])

    def leave(*_: Any) -> None:
        path.pop()

    hooks = [child.register_forward_pre_hook(enter) for child in module.modules()]
    hooks += [child.register_forward_hook(leave) for child in module.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Export logs whole graphs before it raises; our error says it in a line."""
    loggers = [logging.getLogger(name) for name in ("torch.fx.experimental", "torch.export", "torch._export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _user_line(error: BaseException) -> str:
    """``file:line`` of the innermost frame outside torch."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename and f.filename != __file__
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown line"


# -- the loss ---------------------------------------------------------------------------------------


class _LossModule(nn.Module):
    """Takes a model's outputs one by one: export cannot give sizes to every kind of record that holds them."""

    def __init__(self, loss: Loss, structure: pytree.TreeSpec) -> None:
        super().__init__()
        self.loss, self.structure = loss, structure

    def forward(self, *outputs_and_target: Any) -> torch.Tensor:
        *outputs, target = outputs_and_target
        return self.loss(pytree.tree_unflatten(outputs, self.structure), target)


def _append_loss(program: fx.GraphModule, loss: Loss, name: str) -> set[str]:
    """Makes ``program`` map (inputs, target) to the loss; returns the loss's symbols for the batch."""
    graph = program.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    codegen: Any = graph._codegen
    values = pytree.tree_leaves(output.args)
    examples = [
        torch.zeros([EXAMPLE_BATCH, *value.meta["val"].shape[1:]], dtype=value.meta["val"].dtype)
        if isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)
        else value
        for value in values
    ]
    structure = codegen.pytree_info.out_spec
    scores = main_output(pytree.tree_unflatten(examples, structure))
    target = torch.zeros(scores.shape[0], *scores.shape[2:], dtype=torch.int64)
    given = *examples, target
    dynamic = tuple({0: torch.export.Dim.DYNAMIC} if isinstance(leaf, torch.Tensor) else None for leaf in given)
    try:
        with _quiet():
            program_of_loss = torch.export.export(
                _LossModule(loss, structure), given, dynamic_shapes=(dynamic,), strict=False
            )
    except Exception as error:
        raise CaptureError(
            f"the loss cannot take the outputs of {name}, of shape {tuple(scores.shape)}: "
            f"{str(error).strip().splitlines()[0]} (give loss=, a function of outputs and target)"
        ) from error
    tail = program_of_loss.module(check_guards=False).graph
    mapping: dict[fx.Node, Any] = {}
    placeholders = [node for node in tail.nodes if node.op == "placeholder"]
    symbols = {
        str(node.meta["val"].shape[0]) for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor)
    }
    mapping.update(zip(placeholders[:-1], values, strict=True))
    last_input = [node for node in graph.nodes if node.op == "placeholder"][-1]
    with graph.inserting_after(last_input):
        target_node = graph.placeholder("target")
        target_node.meta["val"] = placeholders[-1].meta["val"]
    mapping[placeholders[-1]] = target_node
    with graph.inserting_before(output):
        result = graph.graph_copy(tail, mapping)
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

"""``nn.Module`` → :class:`CapturedModel`, by torch.export.

The model is exported with a dynamic batch, its loss appended, its in-place writes removed, its operators
grouped into layers (see ``grouping``) and described (see ``describe``).
"""

import contextlib
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import fx, nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from deeppool.errors import CaptureError, InvalidValueError
from deeppool.graph.blocks import module_call
from deeppool.graph.constants import fold_constants
from deeppool.graph.describe import describe_layers
from deeppool.graph.grouping import group_into_layers, operator_name
from deeppool.graph.in_place import remove_in_place
from deeppool.graph.inputs import Dtypes, describe, resolve, torch_dtype
from deeppool.graph.layer import Granularity, Input, LayerGraph
from deeppool.graph.losses import classification_loss, main_output, token_loss
from deeppool.graph.shapes import Shapes
from deeppool.graph.workloads import build_model, find_workload
from deeppool.job import Progress

if TYPE_CHECKING:
    from torch.export import ExportedProgram

EXAMPLE_BATCH = 3
"""Odd and small: a model that fixes its batch, or needs an even one, shows it."""

FIXED_BATCH = ("specialized", "Constraints violated", "inferred a static shape")
"""How torch.export says that a model has its batch as a number in it."""

NOISY = ("torch.fx.experimental", "torch.export", "torch._export", "torch._subclasses")
"""Loggers that tell of a failed export at length."""

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
    input_shape: Shapes | None = None,
    *,
    input_dtype: Dtypes | None = None,
    loss: Loss | None = None,
    granularity: Granularity = "module",
    seed: int = 0,
    on_progress: Progress | None = None,
) -> CapturedModel:
    """Captures a model and its loss as a static graph of layers.

    Args:
        model: a module, in the mode in which it will train; a workload's name; ``package.module:callable``.
        input_shape: of one sample, without the batch; a named workload has its own. For several inputs a
            mapping from the names of ``forward``'s arguments to shapes.
        input_dtype: of the input, float32 unless given, or a mapping as for ``input_shape``; a named workload
            has its own.
        loss: maps (outputs, target) to the mean over the samples; target holds class indices. Unless given it
            is the cross-entropy of the class scores, which come in dim 1; where the input is a sequence of
            tokens and dim 1 of the scores counts them, each token has a target and the classes come last.
        granularity: what is one layer. ``operator``: each operator; ``module``: a module with the activation,
            normalisation and reshaping that follow it; ``block``: modules of one call of a repeated container,
            such as a residual block, a transformer layer or an inception module (see ``graph/blocks.py``).
        seed: of the weights, when ``model`` is a name.
        on_progress: see :data:`deeppool.job.Progress`; the shares are of the steps, which take unequal times.

    Raises:
        CaptureError: unknown model, wrong input shape, data-dependent control flow, a fixed batch.
    """
    if granularity not in get_args(Granularity):
        raise InvalidValueError(
            f"granularity must be one of {', '.join(get_args(Granularity))}, got '{granularity}' (module is usual)"
        )
    report = on_progress or (lambda what, share: None)
    if isinstance(model, str):
        report(f"building {model}", 0.0)
        name, module = model, build_model(model, seed)
        inputs = resolve(find_workload(model).inputs, model, input_shape, input_dtype)
    else:
        name, module = type(model).__name__, model
        inputs = resolve((), name, input_shape, input_dtype)
    report(f"exporting {name}", 0.2)
    exported = _export_model(module, name, inputs)
    program = exported.module(check_guards=False)
    assert isinstance(program, fx.GraphModule)
    _check_sizes(program, name)
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    symbols = {str(node.meta["val"].shape[0]) for node in placeholders}
    report(f"the loss of {name}", 0.6)
    symbols |= _append_loss(program, loss, name)
    # Export's check of the inputs knows nothing of the target.
    program._forward_pre_hooks.clear()
    program._forward_pre_hooks_with_kwargs.clear()
    fold_constants(program, exported.graph_signature.lifted_tensor_constants)
    remove_in_place(program.graph, name)
    program.recompile()
    report(f"layers of {name}", 0.7)
    nodes = tuple(tuple(group) for group in group_into_layers(program.graph, symbols, granularity))
    layers = describe_layers(program, nodes, granularity)
    size = sum(p.numel() * p.element_size() for p in program.parameters() if p.requires_grad)
    graph = LayerGraph(name, inputs[0].shape, layers, size, inputs, granularity)
    report(f"captured {name}", 1.0)
    return CapturedModel(graph, program, nodes, frozenset(symbols), module)


# -- export -----------------------------------------------------------------------------------------


def _export_model(module: nn.Module, name: str, inputs: tuple[Input, ...]) -> "ExportedProgram":
    """torch.export with a dynamic batch, and its many ways to fail told in one line each."""
    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    examples = {
        given.name: torch.zeros(EXAMPLE_BATCH, *given.shape, dtype=torch_dtype(given), device=device)
        for given in inputs
    }
    dynamic: Any = {key: {0: torch.export.Dim.DYNAMIC} for key in examples}
    positional = tuple(examples.pop(key) for key in list(examples) if not key)
    path: list[str] = []
    try:
        with _quiet(), _tracking(module, path):
            return torch.export.export(
                module,
                positional,
                examples,
                strict=False,
                dynamic_shapes=tuple(dynamic.values()) if positional else dynamic,
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
            f"{name} cannot take a sample of {describe(inputs)}{where}: {text[0] if text else kind} "
            "(is it the shape of one sample, without the batch?)"
        ) from error


def _check_sizes(program: fx.GraphModule, name: str) -> None:
    """Refuses sizes that only the data tell, such as the number of samples that a mask lets pass."""
    for node in program.graph.nodes:
        if isinstance(node.meta.get("val"), torch.Tensor) and free_unbacked_symbols(node.meta["val"]):
            path = module_call(node)[1]
            raise CaptureError(
                f"{name} makes a tensor whose size depends on data{f' in {path}' if path else ''}, by "
                f"{operator_name(node)}: the graph must be static (multiply by a mask instead of selecting by it)"
            )


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
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            # nn.LSTM lists its weights anew in every forward; export puts the list back.
            warnings.filterwarnings("ignore", message="The tensor attributes? self")
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


def _append_loss(program: fx.GraphModule, loss: Loss | None, name: str) -> set[str]:
    """Makes ``program`` map (inputs, target) to the loss; returns the loss's symbols for the batch."""
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
    symbols = {str(node.meta["val"].shape[0]) for node in placeholders if _is_batched(node)}
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


def _example(value: Any) -> Any:
    """Zeros for an output that leads with the batch; None for a tensor that does not, which no loss reads."""
    found = value.meta.get("val") if isinstance(value, fx.Node) else None
    if not isinstance(found, torch.Tensor):
        return value
    fixed = _is_batched(value) and all(isinstance(size, int) for size in found.shape[1:])
    return torch.zeros([EXAMPLE_BATCH, *found.shape[1:]], dtype=found.dtype) if fixed else None


def _is_batched(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() > 0 and isinstance(value.shape[0], torch.SymInt)


def _scores_tokens(program: fx.GraphModule, scores: torch.Tensor) -> bool:
    """Whether an input is a sequence of tokens, and dim 1 of the scores counts them."""
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    tokens = [x for x in inputs if x.dtype in (torch.int64, torch.int32) and x.dim() == 2]
    return scores.dim() == 3 and any(scores.shape[1] == x.shape[1] for x in tokens)

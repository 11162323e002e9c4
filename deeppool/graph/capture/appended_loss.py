"""Appends the loss to a captured program, which then maps (inputs, target) to the loss."""

import functools
import warnings
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from deeppool.base.number_checks import shown
from deeppool.errors import CaptureError, InvalidValueError
from deeppool.graph.capture.batch_paths import check_paths
from deeppool.graph.capture.batch_sizes import multiple_of_batch
from deeppool.graph.capture.custom_gradients import check_gradients, lost_backwards
from deeppool.graph.capture.export import EXAMPLE_BATCH, fixes_batch, quiet
from deeppool.graph.capture.index_ranges import indexes
from deeppool.graph.capture.losses import classification_loss, main_output, token_loss
from deeppool.graph.capture.mean_over_samples import check_mean
from deeppool.graph.capture.random_numbers import drawing_by_torch
from deeppool.graph.capture.regions import inline_regions

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


SCORES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Numbers of which there is a cross-entropy."""
UNREAD = "a loss gets None for outputs without a row per sample, such as a loss that the model computes"


class _LossModule(nn.Module):
    """Loss of a model's flattened outputs: export has no dynamic shapes for every record type that holds them."""

    def __init__(self, loss: Loss, structure: pytree.TreeSpec) -> None:
        super().__init__()
        self.loss, self.structure = loss, structure

    def forward(self, *outputs_and_target: Any) -> torch.Tensor:
        *outputs, target = outputs_and_target
        return self.loss(pytree.tree_unflatten(outputs, self.structure), target)


class _Candidate(NamedTuple):
    """Target of ``EXAMPLE_BATCH`` samples that a loss may take."""

    target: torch.Tensor
    as_index: bool = False
    """Whether it is the target only of losses that index the scores by it, which are certain to mean it."""


def append_loss(program: fx.GraphModule, loss: Loss | None, name: str, target: torch.Tensor | None = None) -> set[str]:
    """Appends the loss to ``program``; returns the loss's symbols for the batch.

    Args:
        program: changed in place.
        loss: maps (outputs, target) to the mean over the samples; None: cross-entropy.
        name: name of the model, for errors.
        target: target of one sample; None: one that the loss takes is looked for.
    """
    graph = program.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    codegen: Any = graph._codegen
    values = pytree.tree_leaves(output.args)
    symbols = {str(node.meta["val"].shape[0]) for node in graph.nodes if node.op == "placeholder"}
    examples = [_example(value, symbols) for value in values]
    structure = codegen.pytree_info.out_spec
    scores = main_output(pytree.tree_unflatten(examples, structure))
    if not isinstance(scores, torch.Tensor) or scores.dim() < 1:
        first = values[0].meta.get("val") if isinstance(values[0], fx.Node) else None
        got = f" but one of shape {_sizes(first)}" if isinstance(first, torch.Tensor) else ""
        raise CaptureError(
            f"{name} returns no tensor of samples first{got}, expected class scores of shape (batch, classes, …) "
            "(return the scores first, or as .logits, with a row per sample: flatten them in loss=)"
        )
    of_tokens = _scores_tokens(program, scores)
    if loss is None and target is None and structure.is_leaf() and _are_scores(values[0].meta["val"]):
        return _append_default(program, values[0], output, of_tokens)
    candidates = list(_candidates(scores, of_tokens))[: None if loss else 1]
    if target is not None:
        target = _as_tensor(target)
        candidates = [_Candidate(torch.zeros((EXAMPLE_BATCH, *target.shape), dtype=target.dtype))]
    module = _LossModule(loss or (token_loss if of_tokens else classification_loss), structure)
    with lost_backwards() as lost, drawing_by_torch(f"the loss of {name}"):
        exported = _export(module, examples, scores, candidates, name, check=loss is not None)
    if lost:
        _check_gradients(module, exported, lost, name)
    check_paths(exported, f"the loss of {name}", lambda batch: _export_with(module, _resized(exported, batch)))
    _check_no_parameters(exported, program, name)
    devices = [value.meta["val"].device for value in values if isinstance(value, fx.Node) and _grows(value)]
    # The model lies where its user put it, also on a device that this package does not know; the examples on the host.
    if devices[0].type != "cpu":
        exported = move_to_device_pass(exported, devices[0])
    loss_program = exported.module(check_guards=False)
    assert isinstance(loss_program, fx.GraphModule)
    inline_regions(loss_program)
    return _append(program, loss_program, values, output)


def _as_tensor(target: Any) -> torch.Tensor:
    """Returns the target of a sample, which may be NumPy's, or one number."""
    try:
        return torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidValueError(f"target must be a tensor, or what torch makes one of, got {shown(target)}") from None


def _are_scores(value: torch.Tensor) -> bool:
    """Whether a fake tensor of samples has classes, in numbers of which there is a cross-entropy."""
    sizes = value.shape[1:]
    return value.device.type == "cpu" and value.dtype in SCORES and len(sizes) > 0 and min(sizes) > 0


def _append_default(program: fx.GraphModule, scores: fx.Node, output: fx.Node, of_tokens: bool) -> set[str]:
    """Replaces scores as the only output by the default loss of them; returns its symbol for the batch.

    The nodes are those of an export of the loss, which takes more than half of the time of a small model's capture.
    """
    graph, fake = program.graph, _target_of_export()
    _, *sizes = scores.meta["val"].shape
    value = fake.new_empty((fake.shape[0], *sizes), dtype=scores.meta["val"].dtype)
    last_input = [node for node in graph.nodes if node.op == "placeholder"][-1]
    with graph.inserting_after(last_input):
        target = graph.placeholder("target")
    target.meta["val"] = fake.new_empty((fake.shape[0], *(sizes[:-1] if of_tokens else sizes[1:])))

    def call(function: Any, arguments: tuple[Any, ...], result: torch.Tensor) -> fx.Node:
        node = graph.create_node("call_function", function, arguments, name=function.overloadpacket.__name__)
        node.meta = {"val": result, "nn_module_stack": {"loss": ("loss", "loss")}}
        return node

    aten, compared = torch.ops.aten, (scores, target)
    with graph.inserting_before(output):
        if of_tokens:
            flat = call(aten.flatten.using_ints, (scores, 0, -2), value.flatten(0, -2))
            compared = (flat, call(aten.flatten.using_ints, (target,), target.meta["val"].flatten()))
        graph.output(call(aten.cross_entropy_loss.default, compared, value.new_empty(())))
    graph.erase_node(output)
    graph.set_codegen(fx.graph.CodeGen())
    program.recompile()
    return {str(fake.shape[0])}


@functools.cache
@torch.inference_mode(False)
def _target_of_export() -> torch.Tensor:
    """Returns the fake target of an exported default loss: the batch's symbol is part of the signatures of layers."""
    examples = torch.zeros(EXAMPLE_BATCH, 2), torch.zeros(EXAMPLE_BATCH, dtype=torch.int64)
    exported = _export_with(_LossModule(classification_loss, pytree.tree_structure(0)), examples)
    *_, target = (node for node in exported.graph.nodes if node.op == "placeholder")
    found: torch.Tensor = target.meta["val"]
    return found


def _check_gradients(module: _LossModule, exported: torch.export.ExportedProgram, lost: list[str], name: str) -> None:
    """Raises if the exported loss has other gradients by the model's outputs than the loss itself."""
    data = [
        torch.randn_like(x).requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in exported.example_inputs[0]
    ]
    leaves = [x for x in data if isinstance(x, torch.Tensor) and x.requires_grad]
    program = exported.module(check_guards=False)
    check_gradients(f"the loss of {name}", lost, lambda: module(*data), lambda: program(*data), leaves)


def _append(program: fx.GraphModule, loss: Any, values: list[Any], output: fx.Node) -> set[str]:
    """Replaces the outputs of ``program`` by the loss of them."""
    graph = program.graph
    _move_attributes(loss, program)
    placeholders = [node for node in loss.graph.nodes if node.op == "placeholder"]
    mapping: dict[fx.Node, Any] = dict(zip(placeholders[:-1], values, strict=True))
    last_input = [node for node in graph.nodes if node.op == "placeholder"][-1]
    with graph.inserting_after(last_input):
        target_node = graph.placeholder("target")
        target_node.meta["val"] = placeholders[-1].meta["val"]
    mapping[placeholders[-1]] = target_node
    with graph.inserting_before(output):
        result = graph.graph_copy(loss.graph, mapping)
    while isinstance(result, tuple | list):
        result = result[0]
    graph.erase_node(output)
    graph.output(result)
    graph.set_codegen(fx.graph.CodeGen())
    for original, copy in mapping.items():
        if original.op == "call_function":
            copy.meta["nn_module_stack"] = {"loss": ("loss", "loss")}
    program.recompile()
    return {str(node.meta["val"].shape[0]) for node in placeholders if _grows(node)}


def _move_attributes(loss: fx.GraphModule, program: fx.GraphModule) -> None:
    """Makes the tensors of a loss, such as the weights of labels, buffers of ``program``."""
    for node in loss.graph.nodes:
        if node.op == "get_attr":
            value = attrgetter(node.target)(loss)
            node.target = f"loss_{node.target.replace('.', '_')}"
            program.register_buffer(node.target, value, persistent=False)


# -- the target -------------------------------------------------------------------------------------


def _candidates(scores: torch.Tensor, of_tokens: bool) -> Iterator[_Candidate]:
    """Yields targets from the most to the least usual; the first one is that of the default loss."""
    batch, *rest = scores.shape
    of_class, of_token = ((batch, *rest[1:]), (batch, *rest[:-1]))
    first, second = (of_token, of_class) if of_tokens else (of_class, of_token)
    yield _Candidate(torch.zeros(first, dtype=torch.int64), as_index=True)
    yield _Candidate(torch.zeros_like(scores))
    yield _Candidate(torch.zeros(second, dtype=torch.int64), as_index=True)
    yield _Candidate(torch.zeros(batch, dtype=scores.dtype))
    yield _Candidate(torch.zeros(first, dtype=torch.int64))
    yield _Candidate(torch.zeros(second, dtype=torch.int64))


def _export(
    module: _LossModule,
    examples: list[Any],
    scores: torch.Tensor,
    candidates: list[_Candidate],
    name: str,
    *,
    check: bool,
) -> torch.export.ExportedProgram:
    """Exports the loss with the first target that it takes, as the mean over the samples if that is checked."""
    errors: list[Exception] = []
    refusals: list[CaptureError] = []
    for target, as_index in candidates:
        try:
            exported = _export_with(module, (*examples, target))
        except Exception as error:
            errors.append(error)
            continue
        graph_module: Any = exported.module(check_guards=False)
        placeholder = [node for node in graph_module.graph.nodes if node.op == "placeholder"][-1]
        if check and as_index and not indexes(placeholder):
            continue
        try:
            _check_scalar(graph_module, name)
            if check:
                check_mean(graph_module, examples, target, name)
            return exported
        except CaptureError as error:
            if as_index:
                raise
            refusals.append(error)
    if refusals:
        raise refusals[0]
    given = candidates[0].target if len(candidates) == 1 else None
    why = str(errors[0]).strip().splitlines()[0]
    if " " not in why:
        why = f"{type(errors[0]).__name__}: {why}"
    if any(map(fixes_batch, errors)):
        why = f"it fixes the number of samples to {EXAMPLE_BATCH} (use target.shape[0], not len(target) or a number)"
    elif any(example is None for example in examples):
        why = f"{why}; {UNREAD}"
    of = "" if given is None else f" and a target of shape {_shape('batch', *given.shape[1:])}, {given.dtype}"
    raise CaptureError(
        f"the loss cannot take the outputs of {name}, of shape {_shape('batch', *scores.shape[1:])}{of}: {why} (give "
        f"loss=, a function of outputs and target{'' if of else ', and target=, the target of one sample'})"
    ) from errors[0]


def _export_with(module: _LossModule, given: tuple[Any, ...]) -> torch.export.ExportedProgram:
    dynamic = tuple({0: torch.export.Dim.DYNAMIC} if isinstance(leaf, torch.Tensor) else None for leaf in given)
    with quiet():
        # Scores of shape (batch, 1) and a target of shape (batch,) would give batch x batch differences.
        warnings.filterwarnings("error", message="Using a target size")
        return torch.export.export(module, given, dynamic_shapes=(dynamic,), strict=False)


def _resized(exported: torch.export.ExportedProgram, batch: int) -> tuple[Any, ...]:
    """Returns the arguments of an exported loss with another number of samples."""
    (given, _) = exported.example_inputs
    return tuple(x.new_zeros((batch, *x.shape[1:])) if isinstance(x, torch.Tensor) else x for x in given)


def _check_no_parameters(loss: torch.export.ExportedProgram, program: fx.GraphModule, name: str) -> None:
    """Raises for a loss that reads parameters, of its own or of the model: they would be constants in its graph."""
    trained = {parameter.untyped_storage().data_ptr() for parameter in program.parameters()}
    for value in (*loss.state_dict.values(), *loss.constants.values()):
        if isinstance(value, torch.Tensor) and (value.requires_grad or value.untyped_storage().data_ptr() in trained):
            raise CaptureError(
                f"the loss of {name} reads a parameter of shape {tuple(value.shape)}, to which it would give no "
                "gradient (return what it needs from the model; weight decay is the optimizer's)"
            )


def _check_scalar(loss: fx.GraphModule, name: str) -> None:
    (output,) = (node for node in loss.graph.nodes if node.op == "output")
    node = pytree.tree_leaves(output.args)[0]
    if not isinstance(node, fx.Node):
        raise CaptureError(
            f"the loss of {name} returns {shown(node)}, expected a number computed from outputs and target ({UNREAD})"
        )
    value = node.meta["val"]
    if any(isinstance(size, torch.SymInt) or size != 1 for size in value.shape):
        raise CaptureError(
            f"the loss of {name} has shape {_sizes(value)}, expected one number, the mean over the samples "
            '(use reduction="mean", or .mean())'
        )


def _sizes(value: Any) -> str:
    """Returns the shape of a fake tensor, in which every symbol is the batch."""
    return _shape(*(_in_batches(size.node.expr) if isinstance(size, torch.SymInt) else size for size in value.shape))


def _in_batches(expression: Any) -> str:
    """Formats a size as an expression of the batch, such as ``2*batch``."""
    symbol = next(iter(expression.free_symbols))
    return str(expression.subs(dict.fromkeys(expression.free_symbols, symbol))).replace(str(symbol), "batch")


def _shape(*sizes: object) -> str:
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


# -- the model's outputs ----------------------------------------------------------------------------


def _example(value: Any, symbols: set[str]) -> Any:
    """Returns zeros for an output with a row per sample; None for other tensors, which no loss reads."""
    found = value.meta.get("val") if isinstance(value, fx.Node) else None
    if not isinstance(found, torch.Tensor):
        return value
    # With several rows for each sample the loss would be exported, and checked to be a mean, for too few.
    rows = multiple_of_batch(found.shape[0], symbols) if found.dim() else None
    fixed = rows == 1 and all(isinstance(size, int) for size in found.shape[1:])
    return torch.zeros([EXAMPLE_BATCH, *found.shape[1:]], dtype=found.dtype) if fixed else None


def _grows(node: fx.Node) -> bool:
    """Whether a node's value is a tensor whose first size follows from the batch."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() > 0 and isinstance(value.shape[0], torch.SymInt)


def _scores_tokens(program: fx.GraphModule, scores: torch.Tensor) -> bool:
    """Whether an input is a sequence of tokens and the scores have one position per token in dim 1."""
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    tokens = [x for x in inputs if x.dtype in (torch.int64, torch.int32) and x.dim() == 2]
    return scores.dim() == 3 and any(scores.shape[1] == x.shape[1] for x in tokens)

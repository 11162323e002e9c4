"""Training of a captured model, compared with the training of the model itself by plain torch."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import deeppool as dp
from benchmarks.capture.architectures import Architecture
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import Segment, extract
from deeppool.training.synthetic_task import SyntheticTask

SAMPLES, SHARDS, STEPS = 6, (4, 2), 2
Tensors = dict[str, torch.Tensor]


def build(architecture: Architecture) -> tuple[nn.Module, torch.dtype]:
    """Builds a model in float64, or in float32 where its own code does not run in float64."""
    dtype = torch.float64
    try:
        with torch.no_grad():
            call(architecture.build().to(dtype), architecture, examples(architecture, dtype))
    except (RuntimeError, TypeError, ValueError, AssertionError):
        dtype = torch.float32
    torch.manual_seed(0)
    return architecture.build().to(dtype), dtype


def freeze(model: nn.Module, captured: CapturedModel, architecture: Architecture) -> CapturedModel:
    """Turns off what mixes the samples of a batch or draws numbers: BatchNorm's statistics, dropout."""
    for module in model.modules():
        kind = type(module).__name__.lower()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or "drop" in kind or "stochasticdepth" in kind:
            module.eval()
    if is_random(captured):
        return capture(model, architecture, next(model.parameters()).dtype)
    for node in captured.program.graph.nodes:
        # Of a weight without running statistics, the operator is a standardisation that mixes no samples.
        if node.target is torch.ops.aten.batch_norm.default and node.args[3] is not None:
            node.update_arg(5, False)
    return captured


def capture(model: nn.Module, architecture: Architecture, dtype: torch.dtype) -> CapturedModel:
    """Captures a model on its shapes."""
    shapes = {name: shape for name, (shape, _) in architecture.inputs.items()}
    dtypes = {name: dtype if of.is_floating_point else of for name, (_, of) in architecture.inputs.items()}
    return dp.capture(model, shapes, input_dtype=dtypes, loss=architecture.loss)


def examples(architecture: Architecture, dtype: torch.dtype) -> list[torch.Tensor]:
    """Draws inputs; integers are 0 or 1, which every vocabulary has."""
    return [
        torch.randn(SAMPLES, *shape, dtype=dtype) if of.is_floating_point else torch.randint(2, (SAMPLES, *shape))
        for shape, of in architecture.inputs.values()
    ]


def call(model: nn.Module, architecture: Architecture, inputs: list[torch.Tensor]) -> Any:
    """Calls a model as its user does."""
    names = list(architecture.inputs)
    return model(**dict(zip(names, inputs, strict=True))) if names[0] else model(*inputs)


def eager_loss(model: nn.Module, architecture: Architecture, data: list[torch.Tensor]) -> torch.Tensor:
    """Returns the loss of the model itself: its own, or the cross-entropy of its scores."""
    *inputs, target = data
    outputs = call(model, architecture, inputs)
    if architecture.loss:
        return architecture.loss(outputs, target)
    scores = outputs.logits if hasattr(outputs, "logits") else outputs
    scores = next(iter(scores.values())) if isinstance(scores, Mapping) else scores
    while isinstance(scores, tuple | list):
        scores = scores[0]
    if target.dim() == 2 and scores.shape[:2] == target.shape:
        scores = scores.transpose(1, 2)
    return F.cross_entropy(scores, target)


def steps(model: nn.Module, captured: CapturedModel, architecture: Architecture | None) -> Iterator[Tensors]:
    """Yields loss, gradients and running statistics of each step of SGD, by the captured program or by the model.

    Args:
        model: trained, and put back as it was.
        captured: its capture.
        architecture: of the model, to train by plain torch; None: train by the program.
    """
    task = SyntheticTask(captured, SAMPLES, 0)
    state = [*model.parameters(), *model.buffers()]
    before = [value.detach().clone() for value in state]
    torch.manual_seed(0)
    for step in range(STEPS):
        data = list(task.shard(step, 0, SAMPLES))
        loss = eager_loss(model, architecture, data) if architecture else captured.program(*data)
        gradients = gradients_of(loss, model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    parameter.sub_(0.01 * gradients[name])
        buffers = {f"buffer {name}": x.clone() for name, x in model.named_buffers() if x.is_floating_point()}
        yield {"loss": loss.detach(), **gradients, **buffers}
    with torch.no_grad():
        for value, previous in zip(state, before, strict=True):
            value.copy_(previous)


def gradients_of(loss: torch.Tensor, model: nn.Module) -> Tensors:
    """Returns the gradients of the parameters that are trained; zeros where no gradient arrives."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(trained.items(), found, strict=True)
    }


def by_layers_and_shards(captured: CapturedModel) -> Tensors:
    """Returns loss and gradients of shards of a batch, layer by layer on detached inputs, weighted by samples."""
    task = SyntheticTask(captured, SAMPLES, 0)
    segments = [extract(captured, [layer]) for layer in range(len(captured.nodes))]
    total: Tensors = {}
    start = 0
    before = [buffer.clone() for buffer in captured.source.buffers()]
    for count in SHARDS:
        for name, value in _by_layers(captured, segments, task.shard(0, start, start + count)).items():
            total[name] = total.get(name, 0) + value * (count / SAMPLES)
        # Each rank starts with the same state.
        for buffer, value in zip(captured.source.buffers(), before, strict=True):
            buffer.copy_(value)
        start += count
    return total


def _by_layers(captured: CapturedModel, segments: list[Segment], data: tuple[torch.Tensor, ...]) -> Tensors:
    values = dict(zip(captured.program.graph.find_nodes(op="placeholder"), data, strict=True))
    names = {id(parameter): name for name, parameter in captured.source.named_parameters()}
    kept = []
    for segment in segments:
        leaves = [values[node].detach() for node in segment.inputs]
        for leaf, node in zip(leaves, segment.inputs, strict=True):
            leaf.requires_grad_(leaf.is_floating_point() and node.op != "placeholder")
        outputs = segment.module(len(data[0]), *leaves)
        values.update(zip(segment.outputs, outputs, strict=True))
        kept.append((segment, leaves, outputs))
    loss = kept[-1][2][-1]
    arrived = {kept[-1][0].outputs[-1]: torch.ones_like(loss)}
    total: Tensors = {"loss": loss.detach()}
    for segment, leaves, outputs in reversed(kept):
        pairs = [(x, arrived.get(node)) for node, x in zip(segment.outputs, outputs, strict=True)]
        roots = [(x, seed) for x, seed in pairs if seed is not None and x.requires_grad]
        if not roots:
            continue
        wanted = [(node, leaf) for node, leaf in zip(segment.inputs, leaves, strict=True) if leaf.requires_grad]
        trained = [(names[id(p)], p) for p in segment.module.parameters() if p.requires_grad]
        found = torch.autograd.grad(
            [x for x, _ in roots], [x for _, x in (*wanted, *trained)], [seed for _, seed in roots], allow_unused=True
        )
        for (name, _), gradient in zip((*wanted, *trained), found, strict=True):
            where = total if isinstance(name, str) else arrived
            if gradient is not None:
                where[name] = where[name] + gradient if name in where else gradient
    return total


def difference(found: Tensors, expected: Tensors) -> tuple[float, str]:
    """Returns the largest relative difference, and which tensor has it; tiny tensors are relative to the largest."""
    sizes = {name: float(value.abs().max()) if value.numel() else 0.0 for name, value in expected.items()}
    floor = 1e-3 * max(size for name, size in sizes.items() if name != "loss" and not name.startswith("buffer "))
    worst = (0.0, "")
    for name, value in expected.items():
        other = found.get(name, torch.zeros_like(value))
        if value.numel():
            error = float((other - value).abs().max()) / max(sizes[name], floor, 1e-30)
            worst = max(worst, (error if error == error else float("inf"), name))
    return worst


def lowest_dtype(captured: CapturedModel) -> torch.dtype:
    """Returns float32 where a model of float64 computes something in it, as normalisations of transformers do."""
    values = (node.meta.get("val") for node in captured.program.graph.nodes)
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    return torch.float32 if torch.float32 in dtypes else torch.float64


def is_random(captured: CapturedModel) -> bool:
    """Whether the program draws random numbers."""
    nodes = captured.program.graph.nodes
    return any(
        torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and _is_active(node) for node in nodes
    )


def _is_active(node: torch.fx.Node) -> bool:
    if node.target is torch.ops.aten.dropout.default:
        return node.args[1] > 0 and bool(node.args[2])
    if node.target is torch.ops.aten.scaled_dot_product_attention.default:
        return len(node.args) > 4 and node.args[4] > 0
    return True

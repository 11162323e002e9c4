"""Check that a loss is the mean over its samples: ranks weigh the losses of their shards by numbers of samples.

Random samples that differ in scale and in labels are given to the loss together and one by one. A part of the first one
gets labels that usually mark what is missing, and those that the loss names, such as one that it ignores.
"""

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from deeppool.errors import CaptureError
from deeppool.graph.capture.export import EXAMPLE_BATCH
from deeppool.graph.capture.index_ranges import value_count

aten = torch.ops.aten
CROSS_ENTROPIES = (
    aten.cross_entropy_loss.default,
    aten.nll_loss.default,
    aten.nll_loss_nd.default,
    aten.nll_loss2d.default,
)
IGNORED = -100
"""Label that torch's cross-entropies ignore by default, which says nothing of the labels that there are."""
MEAN = 1
"""torch's number of ``reduction="mean"``."""
MISSING = {True: (math.nan, 0.0), False: (0, -1)}
"""Floating-point labels, and others, that usually mark what is missing; no operator need name them: ``t.bool()``."""
ORDERINGS = (aten.gt, aten.ge, aten.lt, aten.le)
"""Comparisons of which a number on either side may be what a loss singles out."""
FEW = 8
"""Most numbers of a constant tensor that may be labels."""
TOLERANCE = 1e-4
FAILURES = (RuntimeError, IndexError, ValueError)
"""Errors of a loss that does not take the numbers or labels that are drawn."""


def check_mean(loss: fx.GraphModule, examples: Sequence[Any], target: torch.Tensor, name: str) -> None:
    """Raises unless a loss of random samples is the mean of the losses of each alone.

    Args:
        loss: maps the outputs and the target to the loss; on the CPU, where a label out of range is only an error.
        examples: outputs of ``EXAMPLE_BATCH`` samples, and what else the model returns.
        target: target of as many samples.
        name: name of the model, for the error.

    Raises:
        CaptureError: it is not, or it has no value for any of the samples.
    """
    compared, failure = False, "it is not finite"
    for label in [None, *_singled_out(loss.graph, target.dtype)]:
        for signed in (True, False):
            outputs, drawn = _draw(loss, examples, target, label, signed=signed)
            try:
                whole = _value(loss, outputs, drawn)
            except FAILURES as error:
                failure = str(error).strip().splitlines()[0]
                continue
            if math.isfinite(whole):
                compared = True
                _compare(whole, _values_alone(loss, outputs, drawn), loss, name, torch.finfo(_floating(examples)).eps)
                if label is not None:
                    break
    if not compared:
        raise CaptureError(
            f"the loss of {name} has no value for random outputs and targets of {str(target.dtype).split('.')[1]}, to "
            f"compare with the mean over the samples: {failure} (does it take other targets? target= shows one)"
        )


def ignores_labels(graph: fx.Graph) -> bool:
    """Whether a graph has a cross-entropy whose mean leaves out the samples or positions labelled ``IGNORED``."""
    return any(
        node.target in CROSS_ENTROPIES
        and _argument(node, "reduction") == MEAN
        and _argument(node, "ignore_index") == IGNORED
        for node in graph.nodes
    )


def _draw(
    loss: fx.GraphModule, examples: Sequence[Any], target: torch.Tensor, label: float | None, *, signed: bool
) -> tuple[list[Any], torch.Tensor]:
    """Draws outputs and a target; not signed, all numbers are between 0 and 1, as probabilities are."""
    generator = torch.Generator().manual_seed(0)
    placeholder = [node for node in loss.graph.nodes if node.op == "placeholder"][-1]
    sizes = torch.arange(1, EXAMPLE_BATCH + 1)

    def numbers(example: torch.Tensor) -> torch.Tensor:
        scale = sizes.reshape(-1, *[1] * (example.dim() - 1))
        if signed:
            return (torch.randn(example.shape, generator=generator) * scale).to(example.dtype)
        return (torch.rand(example.shape, generator=generator) * scale / EXAMPLE_BATCH).to(example.dtype)

    def outputs(example: Any) -> Any:
        return numbers(example) if isinstance(example, torch.Tensor) and example.is_floating_point() else example

    if target.is_floating_point():
        drawn = numbers(target).sign() if signed else numbers(target)
    else:
        counts = (value_count(placeholder) * sizes / EXAMPLE_BATCH).ceil()
        shares = torch.rand(target.shape, generator=generator) * counts.reshape(-1, *[1] * (target.dim() - 1))
        drawn = shares.long().to(target.dtype)
    if label is not None:
        first = drawn[0].flatten()
        first[: (len(first) + 1) // 2] = label
        drawn[0] = first.reshape(drawn[0].shape)
    return [outputs(example) for example in examples], drawn


def _values_alone(loss: fx.GraphModule, outputs: list[Any], target: torch.Tensor) -> list[float]:
    """Returns the loss of each sample alone; not a number where there is none, as of a deviation."""
    found = []
    for k in range(EXAMPLE_BATCH):
        alone = [x[k : k + 1] if isinstance(x, torch.Tensor) else x for x in outputs]
        try:
            found.append(_value(loss, alone, target[k : k + 1]))
        except FAILURES:
            found.append(math.nan)
    return found


def _value(loss: fx.GraphModule, outputs: list[Any], target: torch.Tensor) -> float:
    with torch.no_grad():
        value = loss(*outputs, target)
    while isinstance(value, tuple | list):
        value = value[0]
    return float(value)


def _compare(whole: float, alone: list[float], loss: fx.GraphModule, name: str, eps: float) -> None:
    mean = sum(alone) / len(alone)
    bound = max(TOLERANCE, 4 * eps) * max(abs(whole), *map(abs, alone))
    if abs(whole - mean) <= bound:
        return
    if abs(whole - sum(alone)) <= bound:
        hint = 'it is their sum: use reduction="mean", or divide by the number of samples'
    elif any(node.target in CROSS_ENTROPIES and _weighs(node) for node in loss.graph.nodes):
        hint = (
            "the mean of a cross-entropy with weight= or ignore_index= is over the weights of the batch: use "
            'reduction="none", and take the mean of each sample and then of all'
        )
    else:
        hint = (
            "each sample must count the same: take the mean of each, then of all; and depend on no other: in-batch "
            "negatives, for example, cannot be split over GPUs"
        )
    raise CaptureError(
        f"the loss of {name} is no mean over the samples: of {len(alone)} samples it is {whole:.4g}, the mean of each "
        f"alone is {mean:.4g} ({hint})"
    )


def _singled_out(graph: fx.Graph, dtype: torch.dtype) -> list[float]:
    """Returns labels of a type that a loss may treat in a way of their own."""
    found: dict[float, None] = dict.fromkeys(MISSING[dtype.is_floating_point])
    for node in graph.nodes:
        if node.target in CROSS_ENTROPIES and (ignored := _argument(node, "ignore_index")) != IGNORED:
            found[ignored] = None
        around = (-1, 0, 1) if getattr(node.target, "overloadpacket", None) in ORDERINGS else (0,)
        found.update(dict.fromkeys(number + offset for number in _numbers(node) for offset in around))
    return [label for label in found if _holds(dtype, label)]


def _numbers(node: fx.Node) -> list[float]:
    """Returns the numbers with which an operator computes each element, or those of a small constant."""
    if node.op == "get_attr":
        value = attrgetter(str(node.target))(node.graph.owning_module)
        is_small = isinstance(value, torch.Tensor) and not value.is_complex() and value.numel() <= FEW
        return value.flatten().tolist() if is_small else []
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        return []
    return [each for each in node.args if isinstance(each, int | float) and not isinstance(each, bool)]


def _holds(dtype: torch.dtype, label: float) -> bool:
    """Whether a type has a number."""
    if dtype.is_floating_point:
        return True
    if dtype is torch.bool:
        return label in (0, 1)
    return label == label // 1 and torch.iinfo(dtype).min <= label <= torch.iinfo(dtype).max


def _weighs(node: fx.Node) -> bool:
    """Whether a cross-entropy has weights of classes, or a label that it ignores."""
    return _argument(node, "weight") is not None or _argument(node, "ignore_index") != IGNORED


def _argument(node: fx.Node, name: str) -> Any:
    """Returns an argument of an operator, or its default."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((argument.name for argument in arguments), node.args, strict=False)) | node.kwargs
    return given.get(name, next(argument.default_value for argument in arguments if argument.name == name))


def _floating(examples: Sequence[Any]) -> torch.dtype:
    """Returns the dtype of the first output that is a floating-point tensor."""
    return next((x.dtype for x in examples if isinstance(x, torch.Tensor) and x.is_floating_point()), torch.float32)

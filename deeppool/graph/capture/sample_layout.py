"""The dimension of a tensor that counts samples, from symbolic shapes in which every symbol is the batch."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class Samples(NamedTuple):
    """Dimension that counts the samples of a tensor.

    Entry ``(outer * batch + sample) * inner + rest`` of ``dim`` belongs to ``sample``. ``inner`` is more than 1 where
    dimensions are merged, such as the number of tokens where ``(batch, tokens)`` is flattened to one dimension.
    """

    dim: int
    inner: int = 1


PRIME = 1009
"""A batch by which other sizes are not divisible."""
Layout = Samples | None
"""Where a tensor counts samples; None: it is the same for all samples and all batches, as a weight is."""
SAMPLES = "deeppool_samples"
"""Key of a node's metadata: its layout, or the layouts of its outputs."""


def value_at(size: Any, batch: int) -> Any:
    """Returns a size, or a number computed from sizes, at a batch."""
    if not hasattr(size, "node"):
        return size
    expression = size.node.expr
    return size.node.pytype(expression.subs(dict.fromkeys(expression.free_symbols, batch)))


def batch_dims(value: torch.Tensor) -> dict[int, int]:
    """Returns the dimensions whose size grows with the batch, with k for k x batch and 0 for batch + 1 and the like."""
    found = {}
    sizes: list[Any] = list(value.shape)
    for dim, size in enumerate(sizes):
        if isinstance(size, torch.SymInt) and size.node.expr.free_symbols:
            multiple, rest = divmod(value_at(size, PRIME), PRIME)
            found[dim] = 0 if rest else multiple
    return found


def moved(samples: Samples, source: torch.Tensor, value: torch.Tensor) -> Layout:
    """Returns the samples of ``value`` if its only dimension that grows with the batch is that of ``source``."""
    dims = batch_dims(value)
    same = list(dims.values()) == [batch_dims(source)[samples.dim]]
    return Samples(next(iter(dims)), samples.inner) if same else None


def reshaped(samples: Samples, source: torch.Tensor, value: torch.Tensor) -> Layout:
    """Returns the samples of a reshaped tensor, None where these are spread over several of its dimensions.

    Reshaping keeps the order of the elements, and so the number of elements from one sample to the next.
    """
    dims = list(batch_dims(value).items())
    if len(dims) != 1:
        return None
    ((dim, multiple),) = dims
    step = samples.inner * math.prod(map(int, source.shape[samples.dim + 1 :]))
    inner, rest = divmod(step, max(math.prod(map(int, value.shape[dim + 1 :])), 1))
    return Samples(dim, inner) if inner and not rest and multiple and multiple % inner == 0 else None


def possible_layouts(value: torch.Tensor) -> list[Layout]:
    """Returns all ways in which a tensor of this shape can count samples."""
    dims = batch_dims(value)
    merged = [Samples(dim, inner) for dim, k in dims.items() for inner in range(k, 0, -1) if k % inner == 0]
    return [*merged] if dims else [None]


def take(tensor: torch.Tensor, layout: Layout, batch: int, chosen: Sequence[int]) -> torch.Tensor:
    """Returns some samples of a tensor that holds ``batch`` of them, in the given order."""
    if layout is None:
        return tensor
    dim, inner = layout
    split: torch.Tensor = tensor.unflatten(dim, (-1, batch, inner))
    return split.index_select(dim + 1, torch.tensor(chosen, device=tensor.device)).flatten(dim, dim + 2)

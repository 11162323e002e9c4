"""Which gradients travel together: those that are ready at nearly the same time, up to a size.

A batch saves the latency of all its gradients but one, and costs waiting: its first gradient waits for its last one,
and the layer that is needed first waits for the bytes of the others. Gradients of one part are ready at one moment and
needed at one, so they always travel together. For others both bounds follow from the network. With latency a, seconds
per byte b, and S bytes in all:

    gap   a              waiting longer costs more than sending one message less saves
    size  sqrt(S a / b)  least of (S / size) a + size b: the latencies of all batches, and the bytes of the last one,
                         behind which nothing can hide

The paper (Hashemi, Gropp, Campbell, "Model-Aware Network Scheduling", Caramel) names both limits, and gives no formula;
these are ours.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gradient:
    """Gradient of one parameter."""

    name: str
    size: int
    """Bytes."""
    part: int
    """Part of the model whose backward completes it, and whose forward is the first to use its parameter."""
    ranks: tuple[int, ...] = (0, 1)
    """Ranks that sum it."""
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """Bounds of a batch of gradients."""

    size: float
    """Bytes that the gradients of two or more parts in a batch do not exceed; a part with more travels alone."""
    gap: float
    """Most seconds between the moments at which the first and the last gradient of a batch are ready."""


def bounds_of_batches(latency: float, seconds_per_byte: float, total: int) -> BatchBounds:
    """Returns the bounds for gradients of ``total`` bytes on a network."""
    return BatchBounds(math.sqrt(total * latency / seconds_per_byte) if seconds_per_byte > 0 else math.inf, latency)


def batch_gradients(
    gradients: Sequence[Gradient], ready: Sequence[float], bounds: Sequence[BatchBounds]
) -> list[list[int]]:
    """Groups gradients of the same ranks and type into batches.

    Args:
        gradients: in the order in which the backward pass completes them.
        ready: when the gradients of each part are complete, in seconds.
        bounds: bounds for each gradient; equal for equal ranks.

    Returns:
        Positions of the gradients of each batch, in the order in which the batches are complete.
    """
    batches: list[list[int]] = []
    open_batch: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for positions in _parts(gradients):
        first = gradients[positions[0]]
        bound, key = bounds[positions[0]], (first.ranks, first.dtype)
        batch = open_batch.get(key)
        if (
            batch is None
            or sum(gradients[each].size for each in (*batch, *positions)) > bound.size
            or ready[first.part] - ready[gradients[batch[0]].part] > bound.gap
        ):
            batch = open_batch[key] = []
            batches.append(batch)
        batch += positions
    return sorted(batches, key=lambda batch: batch[-1])


def _parts(gradients: Sequence[Gradient]) -> list[list[int]]:
    """Returns the positions of the gradients of each part, of the same ranks and type, in the order of backward."""
    found: dict[tuple[int, tuple[int, ...], str], list[int]] = defaultdict(list)
    for position, gradient in enumerate(gradients):
        found[gradient.part, gradient.ranks, gradient.dtype].append(position)
    return sorted(found.values(), key=lambda positions: positions[-1])

"""Predicted times of model parallelism in waves, and how many waves fit into memory.

With f, b the seconds of a partition's forward and backward of one batch, a those of moving its outputs to the next
rank, w those of sending its weights and r those of summing its gradients, and with one link that all of these share:

    waves    w_0 + Σ (max(f_k, w_k+1) + a_k) + f_P-1 + Σ (max(b_k, w_k-1 + r_k+1) + a_k-1) + max(b_0, r_1) + r_0
    vanilla  Σ f_k + Σ b_k + 2 Σ a_k

The first sum is over the partitions but the last, the second over those but the first. Both are times of one step, in
which N waves train N batches, so the speed-up over vanilla is N times the ratio of the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from deeppool.base.arguments import typed
from deeppool.base.number_checks import positive_number, whole_number
from deeppool.errors import InvalidValueError, PlanError
from deeppool.graph.layer import LayerGraph
from deeppool.units import format_bytes

STATES = 3
"""Copies of a rank's own weights: weights, gradients and momentum."""


@dataclass(frozen=True, slots=True)
class PartitionCosts:
    """Seconds of one partition of a model."""

    forward: float
    """Of one batch."""
    backward: float
    moved: float
    """Of moving the outputs of one batch to the next rank, or their gradients back; 0 for the last partition."""
    weights: float
    """Of sending its weights to the ranks."""
    gradients: float
    """Of summing its gradients over the ranks."""

    def __post_init__(self) -> None:
        if min(self.forward, self.backward, self.moved, self.weights, self.gradients) < 0:
            raise InvalidValueError(f"costs of a partition must not be negative, got {self}")


def waves_step_time(costs: Sequence[PartitionCosts]) -> float:
    """Returns the time of a step of two or more waves."""
    forward = costs[0].weights + costs[-1].forward
    forward += sum(max(one.forward, following.weights) + one.moved for one, following in pairwise(costs))
    sums = [*(one.gradients for one in costs), 0.0]
    backward = sum(
        max(costs[k].backward, costs[k - 1].weights + sums[k + 1]) + costs[k - 1].moved for k in range(1, len(costs))
    )
    return forward + backward + max(costs[0].backward, sums[1]) + sums[0]


def vanilla_step_time(costs: Sequence[PartitionCosts]) -> float:
    """Returns the time of a step of plain model parallelism: one batch, one rank at a time."""
    return sum(one.forward + one.backward + 2 * one.moved for one in costs)


def efficiency(costs: Sequence[PartitionCosts]) -> float:
    """Returns the speed-up of N waves over plain model parallelism, divided by N."""
    return vanilla_step_time(costs) / waves_step_time(costs)


def equal_partitions(count: int, ratio: float) -> list[PartitionCosts]:
    """Returns partitions alike, of a model that computes a batch in one second.

    A backward takes twice a forward, a tenth of the transfers are activations, and a sum of gradients takes as long as
    sending the weights twice, which a step does too.

    Args:
        count: number of partitions.
        ratio: computing of a batch over all transfers of a step, one after the other.
    """
    if count < 2 or not ratio > 0:
        raise InvalidValueError(f"waves need two or more partitions and a positive ratio, got {count} and {ratio:g}")
    forward, transfers = 1 / 3 / count, 1 / ratio
    moved, weights = 0.1 * transfers / 2 / (count - 1), 0.9 * transfers / 4 / count
    return [
        PartitionCosts(forward, 2 * forward, moved if number < count - 1 else 0.0, weights, 2 * weights)
        for number in range(count)
    ]


def wave_memory(graph: LayerGraph, parts: Sequence[Sequence[int]], samples: int, waves: int) -> int:
    """Returns the bytes that the fullest rank needs.

    Args:
        graph: the model.
        parts: layers of each partition.
        samples: samples of one batch.
        waves: batches in progress at the same time.
    """
    weights = [sum(graph.gradient_bytes[layer] for layer in part) for part in parts]
    saved = [samples * sum(graph.layers[layer].activation_bytes or 0 for layer in part) for part in parts]
    ranks = len(parts)
    needs = []
    for rank in range(ranks):
        mine = [part for part in range(ranks) if (rank - part) % ranks < waves]
        others = sorted((weights[part] for part in mine if part != rank), reverse=True)
        # The partition that is computed and the one that comes next, and gradients until they are summed.
        needs.append(STATES * weights[rank] + sum(others[:2]) + sum(others) + sum(saved[part] for part in mine))
    return max(needs)


@typed
def waves_that_fit(graph: LayerGraph, parts: Sequence[Sequence[int]], samples: int, memory: float) -> int:
    """Returns the largest number of waves for which each rank has enough memory.

    Args:
        graph: the model; its layers' activations must be known.
        parts: layers of each partition.
        samples: samples of one batch.
        memory: bytes that each rank has.

    Raises:
        InvalidValueError: no partitions, no samples, or no memory.
        PlanError: not even one wave fits.
    """
    samples, memory = whole_number("samples", samples), positive_number("memory", memory, "bytes")
    if not len(parts):
        raise InvalidValueError("parts must have a partition, got none (give the layers of each)")
    for waves in range(len(parts), 0, -1):
        if wave_memory(graph, parts, samples, waves) <= memory:
            return waves
    raise PlanError(
        f"one batch of {samples} samples needs {format_bytes(wave_memory(graph, parts, samples, 1))} on a rank, which "
        f"has {format_bytes(int(memory))} (a smaller batch, or more ranks)"
    )

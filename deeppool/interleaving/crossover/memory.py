"""Memory of jobs that share a rank, and the refusal of those that do not fit.

Each job keeps its weights, gradients, the fused copy of these in flight, and its optimizer's state. Only one computes
at a time, so activations count once, by the job that has most of them. Graphs of a device keep theirs, so there they
add up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from deeppool.errors import RunError
from deeppool.graph.layer import LayerGraph
from deeppool.units import format_bytes

STATES = 4
"""Copies of the parameters: weights, gradients, the fused gradients in flight, and momentum."""


@dataclass(frozen=True, slots=True)
class JobMemory:
    """Memory of one job on one rank, in bytes."""

    name: str
    state: int
    """Kept from step to step."""
    activations: int
    """Needed while it computes."""


def job_memory(name: str, graph: LayerGraph, samples: int) -> JobMemory:
    """Estimates the memory of a captured job with some samples on a rank; activations count where they are known."""
    return JobMemory(
        name,
        state=STATES * sum(graph.gradient_bytes),
        activations=samples * sum(layer.activation_bytes or 0 for layer in graph.layers),
    )


def together(jobs: Sequence[JobMemory], *, keeps_activations: bool) -> int:
    """Returns the bytes that jobs need on one rank."""
    activations = [job.activations for job in jobs]
    return sum(job.state for job in jobs) + (sum(activations) if keeps_activations else max(activations, default=0))


def check_memory(jobs: Sequence[JobMemory], available: float, *, keeps_activations: bool) -> None:
    """Raises if jobs do not fit together.

    Args:
        jobs: all jobs of a rank.
        available: bytes that the rank may use.
        keeps_activations: whether a job keeps its activations while others compute.

    Raises:
        RunError: they need more.
    """
    needed = together(jobs, keeps_activations=keeps_activations)
    if needed > available:
        each = ", ".join(f"{job.name} {format_bytes(job.state + job.activations)}" for job in jobs)
        raise RunError(
            f"{len(jobs)} jobs need about {format_bytes(needed)} of memory on each rank ({each}), there are "
            f"{format_bytes(int(available))} (take fewer jobs together, or smaller batches)"
        )

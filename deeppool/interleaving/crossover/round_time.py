"""Predicted times of jobs that share ranks, from their computing and their communication.

A round is one step of each job. All transfers share one link, in the order in which they start, so

    round = max(C1 + … + CN, M1 + … + MN, max Ci + Mi)

with C the time in which a job computes (update included) and M that of its all-reduce. This is the largest mean of the
cycles in which turns wait for each other: the processor is busy, or the link is, or one job waits for its own sum.
For two jobs it equals max(C1, M2) + max(C2, M1). Where all M are hidden, it is the time of computing alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deeppool.base.arguments import check_fields
from deeppool.base.number_checks import real_number, whole_number
from deeppool.errors import InvalidValueError
from deeppool.units import format_bytes, format_seconds

BACKWARD_SHARE = 2 / 3
"""Part of the computing that is backward, beside which data parallelism can transfer gradients: two products for one
of the forward (Narayanan et al., "Efficient Large-Scale Language Model Training", SC 2021, count the same)."""


@dataclass(frozen=True, slots=True)
class JobCosts:
    """What one step of a job costs on its ranks."""

    name: str
    compute: float
    """Seconds of forward, backward and update on the slowest rank."""
    communication: float
    """Seconds of the all-reduce of all its gradients."""
    memory: int = 0
    """Bytes on a rank, of weights, gradients, the optimizer and activations; 0 where unknown."""
    source: str = ""
    """How the times are known: the measurement, or the assumption."""

    def __post_init__(self) -> None:
        for name in ("compute", "communication"):
            object.__setattr__(self, name, real_number(f"{name} of '{self.name}'", getattr(self, name)))
        object.__setattr__(self, "memory", whole_number(f"memory of '{self.name}'", self.memory, least=None))
        check_fields(self)
        if not (0 < self.compute < math.inf and 0 <= self.communication < math.inf and self.memory >= 0):
            raise InvalidValueError(
                f"costs of '{self.name}' must be positive and finite, got {self.compute:g} s of computing, "
                f"{self.communication:g} s of communication and {self.memory} bytes"
            )

    @property
    def ratio(self) -> float:
        """Communication / computing."""
        return self.communication / self.compute

    def __str__(self) -> str:
        memory = f", {format_bytes(self.memory)}" if self.memory else ""
        return (
            f"{self.name}: computes {format_seconds(self.compute)}, communicates {format_seconds(self.communication)} "
            f"a step (ratio {self.ratio:.2f}){memory}{f'; {self.source}' if self.source else ''}"
        )


def crossover_round_time(jobs: Sequence[JobCosts]) -> float:
    """Returns the time of a round in which all jobs cross over."""
    return max(
        sum(job.compute for job in jobs),
        sum(job.communication for job in jobs),
        max((job.compute + job.communication for job in jobs), default=0.0),
    )


def sequential_round_time(jobs: Sequence[JobCosts]) -> float:
    """Returns the time of one step of each job, one job after the other, gradients summed after backward."""
    return sum(job.compute + job.communication for job in jobs)


def apart_round_time(jobs: Sequence[JobCosts], ranks: int, count: int = 1) -> float | None:
    """Returns the time of one step of each job, each on ``count`` of the ranks, which compute for all of them.

    None: a job has no rank of its own, or several, between which it transfers.
    """
    return max(ranks * job.compute for job in jobs) if count == 1 and len(jobs) == ranks else None


def data_parallel_round_time(jobs: Sequence[JobCosts]) -> float:
    """Returns the time of one step of each job, one after the other, each with transfers ideally beside backward."""
    return sum(
        (1 - BACKWARD_SHARE) * job.compute + max(BACKWARD_SHARE * job.compute, job.communication) for job in jobs
    )

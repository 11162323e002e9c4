"""Which jobs to run together, so that one step of each takes the least time.

Jobs of one group cross over; a job alone trains by data parallelism, whose transfers are taken as ideally beside its
backward, so that jobs are put together only where that gains. The groups run one after the other. The best grouping is
found by dynamic programming over sets of jobs, as the time of a group depends on its members alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from deeppool.base.arguments import typed
from deeppool.base.number_checks import positive_number, whole_number
from deeppool.errors import InvalidValueError, PlanError
from deeppool.interleaving.crossover.round_time import (
    JobCosts,
    crossover_round_time,
    data_parallel_round_time,
    sequential_round_time,
)
from deeppool.units import format_bytes, format_seconds

MOST_JOBS = 12
"""Jobs that are grouped at once: the search visits 3^n pairs of a set and a part of it."""
LEAST_GAIN = 1.001
"""Times as long that jobs must take apart to be put together: what is gained must be worth the memory."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Groups of jobs that cross over."""

    KIND: ClassVar[str] = "pairing"

    groups: tuple[tuple[JobCosts, ...], ...]
    memory: float | None
    """Bytes that a rank has, or None: no limit."""
    refused: tuple[tuple[str, ...], ...]
    """Pairs of jobs whose memory is too much together."""

    def __post_init__(self) -> None:
        if not self.groups or not all(self.groups):
            raise InvalidValueError(
                f"a pairing has a group or more of at least one job, got groups of {list(map(len, self.groups))} jobs"
            )

    @property
    def round_time(self) -> float:
        """Predicted time of one step of each job."""
        return sum(group_time(group) for group in self.groups)

    @property
    def sequential(self) -> float:
        """Predicted time of the same, each job alone, gradients summed after backward."""
        return sum(sequential_round_time(group) for group in self.groups)

    @property
    def data_parallel(self) -> float:
        """Predicted time of the same, each job alone, gradients ideally beside backward."""
        return sum(data_parallel_round_time(group) for group in self.groups)

    def __str__(self) -> str:
        lines = [
            f"one step of each job takes {format_seconds(self.round_time)}, predicted: "
            f"{self.sequential / self.round_time:.2f} times as fast as without any overlap, "
            f"{self.data_parallel / self.round_time:.2f} times as fast as ideal data parallelism, all on the "
            "same ranks (dp.compare_orders measures jobs on ranks of their own, too)"
        ]
        for group in self.groups:
            names = " with ".join(job.name for job in group) + " alone" * (len(group) == 1)
            lines.append(
                f"{names}: {format_seconds(group_time(group))} a round, "
                f"{format_seconds(sequential_round_time(group))} without any overlap"
            )
        lines += [
            f"not together: {' and '.join(names)}, which need more than {format_bytes(int(self.memory or 0))}"
            for names in self.refused
        ]
        return "\n".join(lines)


def group_time(group: Sequence[JobCosts]) -> float:
    """Returns the predicted time of one step of each job of a group: of a job alone by ideal data parallelism."""
    return crossover_round_time(group) if len(group) > 1 else data_parallel_round_time(group)


@typed
def pair_jobs(jobs: Sequence[JobCosts], *, memory: float | None = None, together: int = 2) -> Pairing:
    """Groups jobs so that one step of each takes the least predicted time.

    Args:
        jobs: measured by :func:`deeppool.measure_jobs`, or assumed.
        memory: bytes that a rank has for all jobs of a group; None: no limit.
        together: largest group.

    Raises:
        PlanError: a job does not fit alone.
        InvalidValueError: no jobs or too many, two of one name, or jobs whose memory is unknown under a limit.
    """
    costs, together = list(jobs), whole_number("together", together)
    if memory is not None:
        memory = positive_number("memory", memory, "None: no limit")
    _check(costs, memory)
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for chosen in range(1, 2 ** len(costs)):
        found = min(
            (
                (best[chosen & ~part][0] + _price(_members(costs, part), memory), part)
                for part in _parts(chosen, together)
            ),
            key=lambda pair: pair[0],
        )
        best.append((found[0], (*best[chosen & ~found[1]][1], found[1])))
    groups = sorted(best[-1][1], key=lambda part: part & -part)
    refused = tuple(
        (one.name, other.name)
        for one, other in combinations(costs, 2)
        if memory is not None and one.memory + other.memory > memory
    )
    return Pairing(tuple(_members(costs, part) for part in groups), memory, refused if together > 1 else ())


def _parts(chosen: int, together: int) -> Iterator[int]:
    """Yields the parts of a set of jobs that hold its first job, as bits."""
    first = chosen & -chosen
    rest = part = chosen & ~first
    while True:
        if part.bit_count() < together:
            yield part | first
        if not part:
            return
        part = (part - 1) & rest


def _members(jobs: Sequence[JobCosts], part: int) -> tuple[JobCosts, ...]:
    return tuple(job for number, job in enumerate(jobs) if part >> number & 1)


def _price(group: tuple[JobCosts, ...], memory: float | None) -> float:
    """Returns the time of a round, somewhat more for jobs together; infinite where they do not fit."""
    if memory is not None and sum(job.memory for job in group) > memory:
        return float("inf")
    return group_time(group) * (LEAST_GAIN if len(group) > 1 else 1.0)


def _check(jobs: Sequence[JobCosts], memory: float | None) -> None:
    if not 1 <= len(jobs) <= MOST_JOBS:
        raise InvalidValueError(f"expected 1 to {MOST_JOBS} jobs, got {len(jobs)}")
    if len({job.name for job in jobs}) < len(jobs):
        raise InvalidValueError(f"jobs need different names, got {', '.join(job.name for job in jobs)}")
    if memory is None:
        return
    for job in jobs:
        if not job.memory:
            raise InvalidValueError(f"the memory of '{job.name}' is unknown (measure it, or give no limit)")
        if job.memory > memory:
            raise PlanError(
                f"'{job.name}' needs {format_bytes(job.memory)} on each rank, which has {format_bytes(int(memory))} "
                "(take a smaller batch, or more ranks)"
            )

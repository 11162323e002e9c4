"""Records of jobs that crossed over: the training, its jobs, and what the ranks and the link did meanwhile."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from deeppool.errors import InvalidValueError
from deeppool.interleaving.crossover.round_time import (
    JobCosts,
    crossover_round_time,
    sequential_round_time,
)
from deeppool.records.training_record import format_loss
from deeppool.units import format_count, format_seconds

ActivityKind = Literal["compute", "update", "transfer"]


@dataclass(frozen=True, slots=True)
class CrossoverSpan:
    """A time in which a rank computed for a job, or its link transferred gradients of one."""

    rank: int
    job: str
    kind: ActivityKind
    """``compute``: the update of the step before, and a step; ``update``: the last update alone."""
    round: int
    start: float
    """Seconds from the start of the first round shown."""
    end: float


@dataclass(frozen=True, slots=True)
class CrossoverJob:
    """One job of a crossover training."""

    name: str
    global_batch: int
    updates: int
    """Updates at its end, those before a checkpoint included."""
    losses: tuple[float, ...]
    """Mean loss of each step of this call."""
    costs: JobCosts | None
    """Measured in this call, computing beside transfers; None: too few rounds."""
    resumed_from: str | None = None
    checkpoint: str | None = None
    """Last checkpoint, or None."""
    left: bool = False
    """Whether it left before the end; the rounds of the record are without it."""

    def __str__(self) -> str:
        loss = f", loss {format_loss(self.losses[0])} → {format_loss(self.losses[-1])}" if self.losses else ""
        kept = f"; checkpoint {self.checkpoint}" if self.checkpoint else ""
        costs = (
            ""
            if self.costs is None
            else (
                f"; computes {format_seconds(self.costs.compute)} and communicates "
                f"{format_seconds(self.costs.communication)} a step"
            )
        )
        updates = format_count(self.updates, "update")
        return f"{self.name}: {updates} of batch {self.global_batch}{loss}{costs}{kept}{'; left' * self.left}"


def check_spans(spans: Sequence[CrossoverSpan], ranks: int) -> None:
    """Raises InvalidValueError unless the spans are of all ranks, or there are none."""
    seen = {span.rank for span in spans}
    if seen and (min(seen) < 0 or len(seen) != ranks or max(seen) >= ranks):
        raise InvalidValueError(f"spans must be of ranks 0…{ranks - 1}, got {sorted(seen)[:9]}")


@dataclass(frozen=True, slots=True)
class CrossoverRecord:
    """Record of a training of jobs that crossed over."""

    KIND: ClassVar[str] = "crossover"

    jobs: tuple[CrossoverJob, ...]
    ranks: int
    device: str
    device_name: str
    all_reduce: str
    """Name of the pattern that summed gradients."""
    round_times: tuple[float, ...]
    """Seconds of each round in which all jobs settled a step and computed one, since one joined or left last."""
    spans: tuple[CrossoverSpan, ...]
    """Activity of every rank in a few such rounds, measured."""
    planned: float | None
    """Round time predicted before the training, from the jobs measured alone; None where they were not."""
    date: str
    versions: dict[str, str]

    def __post_init__(self) -> None:
        if not self.jobs:
            raise InvalidValueError("a crossover has jobs, got none")
        check_spans(self.spans, self.ranks)

    @property
    def round_time(self) -> float | None:
        """Median time of a round; None: there was none with all jobs."""
        return statistics.median(self.round_times) if self.round_times else None

    @property
    def costs(self) -> tuple[JobCosts, ...]:
        """Costs of the jobs that have not left, as measured in this training; empty: not all are known."""
        found = [job.costs for job in self.jobs if not job.left]
        return tuple(costs for costs in found if costs is not None) if None not in found else ()

    @property
    def predicted(self) -> float | None:
        """Round time by the formula, from the costs measured in this training; None: not all are known."""
        return crossover_round_time(self.costs) if self.costs else None

    @property
    def sequential(self) -> float | None:
        """Time of one step of each job one after the other, by the formula, from the same costs."""
        return sequential_round_time(self.costs) if self.costs else None

    def __str__(self) -> str:
        where = f"{format_count(self.ranks, 'rank')} of {self.device_name}"
        lines = [f"{format_count(len(self.jobs), 'job')} on {where}, all-reduce: {self.all_reduce}"]
        if self.round_time is not None and self.predicted is not None and self.sequential is not None:
            planned = "" if self.planned is None else f", planned {format_seconds(self.planned)}"
            error = self.round_time / self.predicted - 1
            lines.append(
                f"a round takes {format_seconds(self.round_time)} (median of {len(self.round_times)}; the formula says "
                f"{format_seconds(self.predicted)}, {100 * error:+.0f} %{planned}); computing and communication in "
                f"turn would be {format_seconds(self.sequential)}"
            )
        lines += [str(job) for job in self.jobs]
        return "\n".join(lines)

"""Record of a training and of the background jobs beside it: one :class:`TrainingRecord`."""

from dataclasses import dataclass
from typing import ClassVar

from deeppool.base.timeline import Timeline
from deeppool.records.run_record import GovernorResult, StageTimes, TimeSummary, format_losses, governor_lines
from deeppool.units import format_seconds


@dataclass(frozen=True, slots=True)
class BackgroundOutcome:
    """Record of one background job beside a training."""

    name: str
    """Name of its model."""
    rank: int | None
    """Rank that it ran beside; None: it never started."""
    priority: str | None
    """That the operating system granted, and the GPU where there is one."""
    steps: int
    """Updates that it had made when it ended, those before a checkpoint included; a job that was killed, or died, has
    told of them twice a second."""
    samples: int
    """That it trained on in this run, by the same account, those of repeated steps included."""
    throughput: float
    """Samples per second, from its first sign of life to its last one."""
    first_loss: float | None
    """Of its first step in this run; None where there was none, or it is no number."""
    last_loss: float | None
    checkpoint: str | None
    """The last one."""
    restarts: int
    faults: tuple[str, ...]
    """Each crash, hang, or loss that is no number."""
    ended: str
    """``finished``, ``stopped with the foreground``, ``evicted: …``, ``waiting``, or its last fault."""

    def __str__(self) -> str:
        if self.rank is None:
            return f"{self.name}: waiting, no place was free"
        if not self.samples:
            return f"{self.name} beside rank {self.rank}: no step ({self.ended})"
        restarts = f", restarted {self.restarts} times" if self.restarts else ""
        kept = f"; checkpoint {self.checkpoint}" if self.checkpoint else ""
        return (
            f"{self.name} beside rank {self.rank} at {self.priority}: {self.steps} steps, {self.throughput:.3g} "
            f"samples/s, loss {format_losses(self.first_loss, self.last_loss)}{restarts} ({self.ended}){kept}"
        )


def format_loss(loss: float | None) -> str:
    """Four digits, or that it overflowed."""
    return "overflowed" if loss is None else f"{loss:.4f}"


@dataclass(frozen=True, slots=True)
class Metrics:
    """One update."""

    update: int
    loss: float | None
    """Mean over all samples of the update; None where fp16 overflowed, and the update was left out."""
    seconds: float
    samples_per_second: float
    learning_rate: float | None
    """Of the first parameter group."""

    def __str__(self) -> str:
        return (
            f"update {self.update}: loss {format_loss(self.loss)}, {format_seconds(self.seconds)}, "
            f"{self.samples_per_second:.3g} samples/s"
        )


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """Record of one training."""

    KIND: ClassVar[str] = "training"

    model: str
    global_batch: int
    accumulation: int
    """Global batches that went into an update."""
    ranks: int
    cores: int
    """Cores that the ranks shared; with fewer cores than ranks the times predict nothing."""
    device: str
    device_name: str
    plan_iteration_time: float
    """Predicted, of one global batch."""
    iteration_time: TimeSummary
    """Measured, of one update; the first one of each start left out."""
    metrics: tuple[Metrics, ...]
    """Of the updates that this call made."""
    resumed_from: str | None
    checkpoint: str | None
    """The last one."""
    restarts: int
    stages: tuple[StageTimes, ...]
    """Of the last plan, per global batch."""
    proposal: str | None
    """What the measured times made of the plan, where the training was asked to look."""
    switched: bool
    """Whether it went on with the proposed plan."""
    timeline: Timeline
    """The last update."""
    date: str
    versions: dict[str, str]
    background: tuple[BackgroundOutcome, ...] = ()
    governors: tuple[GovernorResult, ...] = ()
    """Per rank, where feedback or a bound on the slowdown was asked for."""

    def __str__(self) -> str:
        first, last = self.metrics[0], self.metrics[-1]
        lines = [
            f"{self.model}: {self.ranks} ranks on {self.device_name}, batch {self.global_batch}: "
            f"updates {first.update} to {last.update}, loss {format_loss(first.loss)} → {format_loss(last.loss)}",
            f"{format_seconds(self.iteration_time.p50)} an update (p99 {format_seconds(self.iteration_time.p99)}); "
            f"planned {format_seconds(self.plan_iteration_time)} a global batch and the update",
        ]
        if self.resumed_from:
            lines.append(f"resumed from {self.resumed_from}")
        if self.restarts:
            lines.append(f"restarted {self.restarts} times after a fault")
        if self.proposal:
            lines.append(f"replanned: {self.proposal}{' (switched to it)' if self.switched else ''}")
        if self.checkpoint:
            lines.append(f"last checkpoint {self.checkpoint}")
        lines += [f"background   {outcome}" for outcome in self.background]
        lines += governor_lines(self.governors)
        return "\n".join(lines)

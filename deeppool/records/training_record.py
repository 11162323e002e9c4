"""Record of a training and of the background jobs beside it: one :class:`TrainingRecord`."""

from dataclasses import dataclass
from typing import ClassVar

from deeppool.base.timeline import Timeline
from deeppool.errors import InvalidValueError
from deeppool.records.compute_times import ComputeTimes, straggler
from deeppool.records.run_record import GovernorResult, StageTimes, TimeSummary, format_losses, governor_lines
from deeppool.records.transfer_plan import TransferPlan
from deeppool.records.trials_record import TrialsRecord
from deeppool.units import format_count, format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class BackgroundOutcome:
    """Outcome of one background job of a training."""

    name: str
    """Name of its model."""
    rank: int | None
    """Rank that it was collocated with, or None if it never started."""
    priority: str | None
    """Priority granted by the operating system, and by the GPU where there is one, or None."""
    steps: int
    """Updates at its end, those before a checkpoint included; a job reports them twice a second, so the count of a
    killed or dead job is that of its last report."""
    samples: int
    """Samples trained on in this run, counted in the same way, those of repeated steps included."""
    throughput: float
    """Samples per second, from its first report to its last one."""
    first_loss: float | None
    """Loss of its first step in this run, or None where there was none, or it is not a number."""
    last_loss: float | None
    checkpoint: str | None
    """Last checkpoint, or None."""
    restarts: int
    faults: tuple[str, ...]
    """Description of each crash, hang, or loss that is not a number."""
    ended: str
    """Exit reason: ``finished``, ``stopped with the foreground``, ``evicted: …``, ``waiting``, or its last fault."""
    final_loss: float | None = None
    """Mean loss of its last steps, ten at most, or None where there was none, or it is not a number."""

    def __str__(self) -> str:
        if self.rank is None:
            return f"{self.name}: waiting when the training ended"
        if not self.samples:
            return f"{self.name} beside rank {self.rank}: no step ({self.ended})"
        restarts = f", {format_count(self.restarts, 'restart')}" if self.restarts else ""
        kept = f"; checkpoint {self.checkpoint}" if self.checkpoint else ""
        return (
            f"{self.name} beside rank {self.rank} at {self.priority}: {self.steps} steps, "
            f"{format_rate(self.throughput)} samples/s, loss "
            f"{format_losses(self.first_loss, self.last_loss)}{restarts} ({self.ended}){kept}"
        )


def format_loss(loss: float | None) -> str:
    """Formats a loss with four digits, or reports that it overflowed."""
    return "overflowed" if loss is None else f"{loss:.4f}"


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of one update."""

    update: int
    loss: float | None
    """Mean loss over all samples of the update, or None where fp16 overflowed, and the update was skipped."""
    seconds: float
    samples_per_second: float
    """Of the samples that ranks computed for it; a late rank of eager-SGD skips its share of them."""
    learning_rate: float | None
    """Learning rate of the first parameter group with which the update was made, or skipped; None: it has none."""

    def __str__(self) -> str:
        return (
            f"update {self.update}: loss {format_loss(self.loss)}, {format_seconds(self.seconds)}, "
            f"{format_rate(self.samples_per_second)} samples/s"
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the ranks of a training, until its last update, a fault, or the return of a GPU."""

    gpus: tuple[int, ...]
    """GPU of each rank, as the launcher numbers them."""
    plan_iteration_time: float
    """Predicted iteration time of the plan that the ranks trained by."""
    layer_counts: tuple[tuple[int, int], ...]
    """Number of layers by GPU count of that plan: pairs of a GPU count and a number of layers, the largest first."""
    resumed_after: int
    """Updates of the checkpoint that it resumed from; 0: it started from the beginning."""
    last_update: int
    """Last update of it that every rank reported; a later attempt may repeat some."""
    recovery: float | None
    """Seconds without an update: from the end of the last one of an earlier attempt to the end of the first one of this
    one; None: it was the first attempt, or made no update."""
    ended: str
    """Why it ended; empty: with the last update of the training."""

    def __str__(self) -> str:
        made = self.last_update > self.resumed_after
        updates = f"updates {self.resumed_after + 1} to {self.last_update}" if made else "no update"
        recovery = "" if self.recovery is None else f", after {format_seconds(self.recovery)} without one"
        end = f"; {self.ended}" if self.ended else ""
        layers = ", ".join(f"{layers} on {count}" for count, layers in self.layer_counts)
        return (
            f"{updates} on GPU{'s' * (len(self.gpus) > 1)} {','.join(map(str, self.gpus))}{recovery}; planned "
            f"{format_seconds(self.plan_iteration_time)} an iteration, layers: {layers}{end}"
        )


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """Record of one training."""

    KIND: ClassVar[str] = "training"

    model: str
    global_batch: int
    accumulation: int
    """Global batches per update."""
    ranks: int
    cores: int
    """Cores that the ranks shared; with fewer cores than ranks the times predict nothing."""
    device: str
    device_name: str
    plan_iteration_time: float
    """Predicted time of one global batch and an update, in seconds."""
    iteration_time: TimeSummary
    """Measured time of one update; the first one of each start is left out.

    Of a training by a plan of transfers that of the updates by the last plan, where there are some.
    """
    metrics: tuple[Metrics, ...]
    """Metrics of the updates made in this call."""
    resumed_from: str | None
    checkpoint: str | None
    """Last checkpoint, or None."""
    restarts: int
    stages: tuple[StageTimes, ...]
    """Stage times of the last plan, per global batch."""
    proposal: str | None
    """Change of plan proposed from the measured times, where replanning was requested, or None."""
    switched: bool
    """Whether the training continued with the proposed plan."""
    timeline: Timeline
    """Timeline of the update nearest the median, of those in the last chunk."""
    date: str
    versions: dict[str, str]
    background: tuple[BackgroundOutcome, ...] = ()
    governors: tuple[GovernorResult, ...] = ()
    """Result of each rank's controller, where feedback or a bound on the slowdown was requested."""
    plan_update_time: float = 0.0
    """Part of ``plan_iteration_time`` that is the update; 0 where the plan does not predict it."""
    trials: TrialsRecord | None = None
    """Results of the hyper-parameter trials, if the background was some."""
    transfers: TransferPlan | None = None
    """Plan of the transfers, where a scheduler made one."""
    compute_times: tuple[ComputeTimes, ...] = ()
    """How long each rank computes before it meets the others; the first update of each start is left out."""
    attempts: tuple[Attempt, ...] = ()
    """Starts of the ranks in this call, in order; empty in records of earlier versions."""

    def __post_init__(self) -> None:
        if not self.metrics:
            raise InvalidValueError("metrics are of at least 1 update, got none")

    @property
    def planned_time(self) -> float:
        """Predicted seconds of one update and its global batches."""
        return self.accumulation * (self.plan_iteration_time - self.plan_update_time) + self.plan_update_time

    def __str__(self) -> str:
        first, last = self.metrics[0], self.metrics[-1]
        lines = [
            f"{self.model}: {format_count(self.ranks, 'rank')} on {self.device_name}, batch {self.global_batch}: "
            f"updates {first.update} to {last.update}, loss {format_loss(first.loss)} → {format_loss(last.loss)}",
            f"{format_seconds(self.iteration_time.p50)} an update (p99 {format_seconds(self.iteration_time.p99)}); "
            f"planned {format_seconds(self.planned_time)}{' and the optimizer' * (not self.plan_update_time)}",
        ]
        if self.resumed_from:
            lines.append(f"resumed from {self.resumed_from}")
        if self.restarts:
            lines.append(f"{format_count(self.restarts, 'restart')} after a fault")
        if len(self.attempts) > 1:
            lines += [f"attempt {number}    {attempt}" for number, attempt in enumerate(self.attempts, 1)]
        if self.proposal:
            lines.append(f"replanned: {self.proposal}{' (switched to it)' if self.switched else ''}")
        if self.checkpoint:
            lines.append(f"last checkpoint {self.checkpoint}")
        if self.transfers is not None:
            lines.append(f"transfers    {self.transfers}")
        if (late := straggler(self.compute_times, (stage.gpus for stage in self.stages))) is not None:
            lines.append(f"late         {late}")
        lines += [f"background   {outcome}" for outcome in self.background]
        if self.trials is not None:
            lines += [f"trials       {line}" for line in str(self.trials).splitlines()]
        lines += governor_lines(self.governors)
        return "\n".join(lines)

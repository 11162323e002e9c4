"""Trains the user's own model by a plan: metrics while it trains, checkpoints, and going on after a fault."""

import datetime
import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from deeppool.child import Message
from deeppool.env import package_versions
from deeppool.errors import InvalidValueError, RankFailedError, RunError
from deeppool.execution import checkpoint
from deeppool.execution.checkpoint import Checkpoint
from deeppool.execution.monitor import stage_times, timeline
from deeppool.execution.ranks import Ranks, private_folder
from deeppool.execution.stages import stages_of
from deeppool.execution.training import TrainingJob
from deeppool.job import Progress, StageTimes, TimeSummary, summarise
from deeppool.planning.plan import Plan
from deeppool.timeline import Timeline
from deeppool.units import format_seconds

CHUNK = 50
"""Updates between two looks at what the ranks measured, where no checkpoint comes earlier."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """One update."""

    update: int
    loss: float
    """Mean over all samples of the update."""
    seconds: float
    samples_per_second: float
    learning_rate: float | None
    """Of the first parameter group."""

    def __str__(self) -> str:
        return (
            f"update {self.update}: loss {self.loss:.4f}, {format_seconds(self.seconds)}, "
            f"{self.samples_per_second:.3g} samples/s"
        )


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """What came of a training."""

    KIND: ClassVar[str] = "training"

    model: str
    global_batch: int
    ranks: int
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
    timeline: Timeline
    """The last update."""
    date: str
    versions: dict[str, str]

    def __str__(self) -> str:
        first, last = self.metrics[0], self.metrics[-1]
        lines = [
            f"{self.model}: {self.ranks} ranks on {self.device_name}, batch {self.global_batch}: "
            f"updates {first.update} to {last.update}, loss {first.loss:.4f} → {last.loss:.4f}",
            f"{format_seconds(self.iteration_time.p50)} an update (p99 {format_seconds(self.iteration_time.p99)}); "
            f"planned {format_seconds(self.plan_iteration_time)} a global batch and the update",
        ]
        if self.resumed_from:
            lines.append(f"resumed from {self.resumed_from}")
        if self.restarts:
            lines.append(f"restarted {self.restarts} times after a fault")
        if self.checkpoint:
            lines.append(f"last checkpoint {self.checkpoint}")
        return "\n".join(lines)


def train(
    plan: Plan,
    job: TrainingJob,
    *,
    steps: int,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 100,
    keep: int = 2,
    restarts: int = 0,
    on_metrics: Callable[[Metrics], None] | None = None,
    on_progress: Progress | None = None,
) -> TrainingRecord:
    """Trains by a plan on this machine, as one process would on the global batch.

    Args:
        plan: made of the profile of ``job.capture()``.
        job: model, data, loss and rule.
        steps: updates that the training shall have made in the end, those before a checkpoint included.
        checkpoints: folder to keep them in; the training goes on from the latest one there, which may have been
            written by another plan or number of ranks. None: none.
        checkpoint_every: updates between two checkpoints; the last update is followed by one too.
        keep: checkpoints that stay.
        restarts: how often to start again from the last checkpoint after a rank was lost.
        on_metrics: called with every update.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: a number that makes no sense, or a checkpoint of another training.
        RankFailedError: a rank died or hung, and no restart was left; every process has ended by then.
        RunError: the loss is no number.
        DocumentError: a checkpoint cannot be written or read.
    """
    for name, value, least in (
        ("steps", steps, 1),
        ("checkpoint_every", checkpoint_every, 1),
        ("keep", keep, 1),
        ("restarts", restarts, 0),
    ):
        if value < least:
            raise InvalidValueError(f"{name} must be at least {least}, got {value}")
    folder = None if checkpoints is None else Path(checkpoints)
    run = _Run(plan, job, steps, folder, checkpoint_every, keep, on_metrics, on_progress or (lambda what, share: None))
    while True:
        try:
            run.attempt()
            return run.record()
        except RankFailedError as error:
            if run.restarts == restarts:
                raise RankFailedError(f"{error}{run.usable()}") from error
            run.restarts += 1


@dataclass
class _Run:
    """A training and what is known of it so far."""

    plan: Plan
    job: TrainingJob
    steps: int
    folder: Path | None
    every: int
    keep: int
    on_metrics: Callable[[Metrics], None] | None
    report: Progress
    updates: int = 0
    restarts: int = 0
    resumed_from: str | None = None
    times: list[float] = field(default_factory=list)
    metrics: list[Metrics] = field(default_factory=list)
    last: list[Message] = field(default_factory=list)
    _told: dict[int, list[Message]] = field(default_factory=dict)

    def attempt(self) -> None:
        """Starts all ranks, and trains to the end."""
        with private_folder() as folder:
            self.report("starting", 0.0)
            with Ranks(self.plan, self.job, folder) as ranks:
                ranks.wait_until_ready()
                self._resume(ranks)
                while self.updates < self.steps:
                    self._advance(ranks)
        self.report("done", 1.0)

    def _resume(self, ranks: Ranks) -> None:
        found = checkpoint.latest(self.folder) if self.folder is not None else None
        self.updates = 0
        self._told.clear()
        if found is None:
            self.metrics.clear()
            return
        written = checkpoint.read(found)
        wanted = (self.plan.graph_fingerprint, self.plan.global_batch)
        if (written.graph_fingerprint, written.global_batch) != wanted:
            raise InvalidValueError(
                f"{found} is of {written.model} at global batch {written.global_batch}, this is {self.plan.model} at "
                f"{self.plan.global_batch} (choose another folder for checkpoints)"
            )
        if written.updates >= self.steps:
            raise InvalidValueError(
                f"{found} has made {written.updates} updates already, steps is {self.steps} (ask for more steps, or "
                "choose another folder for checkpoints)"
            )
        ranks.load(found, written.updates)
        self.updates = written.updates
        # After a fault, updates behind the checkpoint are made again.
        self.metrics = [metrics for metrics in self.metrics if metrics.update <= self.updates]
        if not self.metrics:
            self.resumed_from = str(found)

    def _advance(self, ranks: Ranks) -> None:
        until = self.steps
        if self.folder is not None:
            until = min(until, self.updates + self.every - self.updates % self.every)
        count = min(until - self.updates, CHUNK)
        self.last = ranks.train(count, self._hear, told=True)
        self.times += [max(times) for times in zip(*(answer["times"] for answer in self.last), strict=True)][1:]
        self.updates += count
        if self.folder is not None and self.updates == until:
            self.report("writing a checkpoint", self.updates / self.steps)
            self._save(ranks, self.folder)

    def _hear(self, told: Message) -> None:
        """One rank has made an update; when all have, its loss is known."""
        heard = self._told.setdefault(told["step"], [])
        heard.append(told)
        if len(heard) < self.plan.gpus:
            return
        del self._told[told["step"]]
        loss = sum(part["loss"] for part in heard)
        if not math.isfinite(loss):
            raise RunError(
                f"the loss is {loss} after update {told['step']} of {self.plan.model}{self.usable()} "
                "(lower the learning rate, clip gradients, or look at the data)"
            )
        seconds = max(part["seconds"] for part in heard)
        samples = self.plan.global_batch * self.job.accumulation
        rate = next((part["learning_rate"] for part in heard if "learning_rate" in part), None)
        metrics = Metrics(told["step"], loss, seconds, samples / seconds, rate)
        self.metrics.append(metrics)
        self.report(f"update {told['step']} of {self.steps}, loss {loss:.4f}", told["step"] / self.steps)
        if self.on_metrics is not None:
            self.on_metrics(metrics)

    def _save(self, ranks: Ranks, folder: Path) -> None:
        partial = checkpoint.begin(folder, self.updates)
        (state, *_) = ranks.save(partial)
        record = Checkpoint(
            model=self.plan.model,
            graph_fingerprint=self.plan.graph_fingerprint,
            updates=self.updates,
            iterations=state["iterations"],
            global_batch=self.plan.global_batch,
            ranks=self.plan.gpus,
            loss_scale=state["loss_scale"],
            updates_since_scaled=state["updates_since_scaled"],
        )
        checkpoint.seal(partial, record, self.keep)

    def usable(self) -> str:
        """What is left after a fault."""
        found = checkpoint.latest(self.folder) if self.folder is not None else None
        return f"; the last checkpoint is {found}" if found else "; there is no checkpoint"

    def record(self) -> TrainingRecord:
        """Everything that was measured."""
        plan = self.plan
        found = checkpoint.latest(self.folder) if self.folder is not None else None
        return TrainingRecord(
            model=plan.model,
            global_batch=plan.global_batch,
            ranks=plan.gpus,
            device=plan.device,
            device_name=plan.device_name,
            plan_iteration_time=plan.iteration_time,
            iteration_time=summarise(self.times or [statistics.median(m.seconds for m in self.metrics)]),
            metrics=tuple(self.metrics),
            resumed_from=self.resumed_from,
            checkpoint=None if found is None else str(found),
            restarts=self.restarts,
            stages=stage_times(plan, stages_of(plan), self.last),
            timeline=timeline(plan, self.last, -1),
            date=datetime.datetime.now().isoformat(timespec="seconds"),
            versions=package_versions("deeppool", "torch"),
        )

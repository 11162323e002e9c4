"""A training from its first start to its last update, on ranks that are started again after a fault."""

import datetime
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from deeppool.base.run_control import RunControl
from deeppool.base.sharing import Sharing
from deeppool.collocation.supervisor import Supervisor
from deeppool.device.environment import package_versions
from deeppool.errors import InvalidValueError, RankFailedError, RankRefusedError, RunCancelledError, RunError
from deeppool.execution import checkpoint
from deeppool.execution.checkpoint import Checkpoint
from deeppool.execution.measurements import governor_results, stage_times, timeline
from deeppool.execution.ranks import Ranks
from deeppool.execution.stages import stages_of
from deeppool.job import Progress
from deeppool.planning.plan import Plan
from deeppool.planning.replanning.replan import Replan, replan
from deeppool.processes.launcher import Launcher
from deeppool.processes.managed_process import Message
from deeppool.processes.rank_group import private_folder
from deeppool.profiling.table import Profile
from deeppool.records.run_record import summarise
from deeppool.records.training_record import Metrics, TrainingRecord, format_loss
from deeppool.training.training_job import TrainingJob

CHUNK = 50
"""Updates between two looks at what the ranks measured, where no checkpoint comes earlier."""
SHORT_CHUNK = 5
"""The same while no background job has begun to train: from then on the ranks govern it."""


@dataclass(frozen=True, slots=True)
class ReplanTrigger:
    """When to plan again, of what, and who decides."""

    after: int
    profile: Profile
    decide: Callable[[Replan], bool] | None


@dataclass
class RestartLoop:
    """A training and what is known of it so far."""

    plan: Plan
    job: TrainingJob
    steps: int
    folder: Path | None
    every: int
    keep: int
    on_metrics: Callable[[Metrics], None] | None
    report: Progress
    look: ReplanTrigger | None
    launcher: Launcher
    sharing: Sharing | None
    run_control: RunControl
    host: Supervisor | None
    updates: int = 0
    restarts: int = 0
    resumed_from: str | None = None
    times: list[float] = field(default_factory=list)
    metrics: list[Metrics] = field(default_factory=list)
    last: list[Message] = field(default_factory=list)
    proposal: str | None = None
    switched: bool = False
    bounds: int = 0
    """How often the bound was changed."""
    _told: dict[int, list[Message]] = field(default_factory=dict)

    def complete(self, restarts: int) -> None:
        """Trains to the end, with so many restarts at most."""
        while True:
            try:
                return self._attempt()
            except RankFailedError as error:
                if self.restarts == restarts or isinstance(error, RankRefusedError):
                    raise type(error)(f"{error}{self.usable()}") from error
                self.restarts += 1
                if self.host is not None:
                    self.host.foreground_lost()
                self.report(f"starting again: {error}", self.updates / self.steps)
            except RunCancelledError as error:
                raise RunCancelledError(f"{error}{self.usable()}") from error

    def _attempt(self) -> None:
        """Starts all ranks, and trains to the end."""
        with private_folder() as folder:
            self.report("starting", 0.0)
            try:
                boards = None if self.host is None else self.host.boards
                with Ranks(self.plan, self.job, folder, self.launcher, self.sharing, boards) as ranks:
                    self._train(ranks, folder)
            finally:
                # No rank is left that could still be writing one.
                if self.folder is not None:
                    checkpoint.discard_partial(self.folder)

    def _train(self, ranks: Ranks, folder: Path) -> None:
        ranks.wait_until_ready()
        self._resume(ranks)
        started = self.updates
        while self.updates < self.steps:
            self._advance(ranks, started)
            if self.look is not None and self.updates == started + self.look.after and not self.proposal:
                self._look_again(ranks, self.look, folder)

    def _resume(self, ranks: Ranks) -> None:
        if self.folder is not None:
            ranks.share(self.folder)
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

    def _advance(self, ranks: Ranks, started: int) -> None:
        until = self.steps
        if self.look is not None and self.updates < started + self.look.after:
            until = min(until, started + self.look.after)
        if self.folder is not None:
            until = min(until, self.updates + self.every - self.updates % self.every)
        beside = self.host is not None and self.host.under_way
        count = min(until - self.updates, CHUNK if beside or self.host is None else SHORT_CHUNK)
        self.last = ranks.train(count, partial(self._hear, ranks), told=True, beside=beside)
        self.times += [max(times) for times in zip(*(answer["times"] for answer in self.last), strict=True)][1:]
        self.updates += count
        if self.folder is not None and (self.updates == self.steps or self.updates % self.every == 0):
            self.report("writing a checkpoint", self.updates / self.steps)
            self._save(ranks, self.folder, self.keep)

    def _look_again(self, ranks: Ranks, look: ReplanTrigger, folder: Path) -> None:
        """Plans with the measured times; on a yes the ranks change their stages, and lose nothing."""
        found = replan(self.plan, look.profile, self.record())
        self.proposal = str(found)
        self.report(self.proposal, self.updates / self.steps)
        if look.decide is None or not look.decide(found):
            return
        ranks.switch(found.after, self._state(ranks, folder))
        self.plan, self.switched = found.after, True
        self.times.clear()

    def _state(self, ranks: Ranks, folder: Path) -> Path:
        """A checkpoint of the last update: in the folder of checkpoints, which all machines share, if there is one."""
        if self.folder is None:
            return self._save(ranks, folder / "switch", 1)
        found = checkpoint.latest(self.folder)
        if found is not None and checkpoint.read(found).updates == self.updates:
            return found
        return self._save(ranks, self.folder, self.keep)

    def _hear(self, ranks: Ranks, told: Message) -> None:
        """One rank has made an update; when all have, its loss is known."""
        self._steer(ranks)
        heard = self._told.setdefault(told["step"], [])
        heard.append(told)
        if len(heard) < self.plan.gpus:
            return
        del self._told[told["step"]]
        loss = self._loss(heard)
        seconds = max(part["seconds"] for part in heard)
        samples = self.plan.global_batch * self.job.accumulation
        rate = next((part["learning_rate"] for part in heard if "learning_rate" in part), None)
        metrics = Metrics(told["step"], loss, seconds, samples / seconds, rate)
        self.metrics.append(metrics)
        self.report(f"update {told['step']} of {self.steps}, loss {format_loss(loss)}", told["step"] / self.steps)
        if self.on_metrics is not None:
            self.on_metrics(metrics)
        for what in () if self.host is None else self.host.news():
            self.report(what, told["step"] / self.steps)

    def _steer(self, ranks: Ranks) -> None:
        """Hands a new bound to the ranks, and to those that start in their place."""
        bound = self.run_control.take()
        if bound is not None and self.sharing is not None:
            self.sharing = replace(self.sharing, max_slowdown=bound)
            self.bounds += 1
            ranks.change_bound(bound, self.bounds)

    def _loss(self, heard: list[Message]) -> float | None:
        """The mean over the global batches; None where fp16 overflowed, and the update was left out."""
        loss = sum(part["loss"] for part in heard)
        if math.isfinite(loss):
            return float(loss)
        if any(part["skipped"] for part in heard):
            return None
        where = " and ".join(f"rank {part['rank']}" for part in heard if not math.isfinite(part["loss"]))
        raise RunError(
            f"the loss is {loss} after update {heard[0]['step']} of {self.plan.model}, on {where}{self.usable()} "
            "(lower the learning rate, clip gradients, or look at the data)"
        )

    def _save(self, ranks: Ranks, folder: Path, keep: int) -> Path:
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
        return checkpoint.seal(partial, record, keep)

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
            accumulation=self.job.accumulation,
            ranks=plan.gpus,
            cores=self.launcher.cores,
            device=plan.device,
            device_name=plan.device_name,
            plan_iteration_time=plan.iteration_time,
            iteration_time=summarise(self.times or [statistics.median(m.seconds for m in self.metrics)]),
            metrics=tuple(self.metrics),
            resumed_from=self.resumed_from,
            checkpoint=None if found is None else str(found),
            restarts=self.restarts,
            stages=stage_times(plan, stages_of(plan), self.last, self.job.accumulation),
            proposal=self.proposal,
            switched=self.switched,
            timeline=timeline(plan, self.last, -1),
            governors=governor_results(self.sharing, self.last),
            date=datetime.datetime.now().isoformat(timespec="seconds"),
            versions=package_versions("deeppool", "torch"),
            background=() if self.host is None else self.host.outcomes(),
        )

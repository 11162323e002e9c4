"""Settings of a training, which do not change, and its progress, which does."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from deeppool.base import serialization
from deeppool.base.run_control import RunControl
from deeppool.collectives.partial.load_imbalance import Delays
from deeppool.collocation.supervisor import Supervisor
from deeppool.errors import RunError
from deeppool.execution.checkpoint_folder import CheckpointFolder
from deeppool.execution.measurements import iteration_times
from deeppool.execution.sync_method import GradientSyncMethod
from deeppool.execution.typical_iteration import TypicalIteration
from deeppool.job import Progress
from deeppool.planning.replanning.replan import Replan
from deeppool.processes.launcher import Launcher
from deeppool.processes.managed_process import Message
from deeppool.profiling.table import Profile
from deeppool.records.training_record import Attempt, Metrics
from deeppool.runs.elastic_ranks import ElasticRanks
from deeppool.training.training_job import TrainingJob

EXACT = 1e-9
"""Rounding of a sum of shares."""


@dataclass(frozen=True, slots=True)
class ReplanTrigger:
    """Condition under which to plan again, the profile to plan from, and the callback that accepts the new plan."""

    after: int
    profile: Profile
    decide: Callable[[Replan], bool] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Request of a training, and where it runs."""

    job: TrainingJob
    steps: int
    """Updates at the end of the training, those before a checkpoint included."""
    ranks: int
    """Ranks of the plan for all GPUs."""
    launcher: Launcher
    elastic: ElasticRanks | None
    """Chooses GPUs and plan of each start; None: each has all GPUs, and the same plan."""
    checkpoints: CheckpointFolder
    replan_trigger: ReplanTrigger | None
    run_control: RunControl
    supervisor: Supervisor | None
    """Supervisor of the background jobs; None: there are none."""
    gradient_sync: GradientSyncMethod | None
    load_imbalance: Delays | None
    on_metrics: Callable[[Metrics], None] | None
    report: Progress


@dataclass(slots=True)
class TrainingProgress:
    """Updates of a training so far, and what was measured of them."""

    updates: int = 0
    saved: int = 0
    """Updates of the last checkpoint that was written because it was due."""
    restarts: int = 0
    resumed_from: str | None = None
    device_name: str = ""
    """Name of the device on which the ranks of the last start compute."""
    proposal: str | None = None
    switched: bool = False
    """Whether the ranks have changed to the proposed plan."""
    times: list[float] = field(default_factory=list)
    """Seconds of each iteration; the first one of every chunk is left out.

    Of a training by a plan of transfers only the iterations by the last plan, once there are some.
    """
    metrics: list[Metrics] = field(default_factory=list)
    typical: TypicalIteration = field(default_factory=TypicalIteration)
    """Of those iterations; of chunks of one update, also that."""
    computing: list[list[float | None]] = field(default_factory=list)
    """Of each rank: its computing seconds of each iteration, as in ``times``; None: it left the iteration out."""
    attempts: list[Attempt] = field(default_factory=list)
    """Starts of the ranks so far, the present one included."""
    last: list[Message] = field(default_factory=list)
    """Answers of the ranks for the last chunk of updates."""
    _transfers: dict[str, object] | None = None
    """Plan of transfers of those iterations."""
    _reports: dict[int, list[Message]] = field(default_factory=dict)
    """Messages of the ranks by update, until every rank has reported it."""

    def resume(self, updates: int) -> None:
        """Continues after ``updates`` updates; later ones are repeated, so their metrics are dropped."""
        self.updates = updates
        self.attempts[-1] = replace(self.attempts[-1], resumed_after=updates, last_update=updates)
        self._reports.clear()
        self.metrics = [metrics for metrics in self.metrics if metrics.update <= updates]

    def add_times(self, answers: list[Message], *, ranks_wait: bool) -> None:
        """Adds the iterations of a chunk; those by an earlier plan of transfers are dropped once there are others."""
        times, latest = iteration_times(answers, ranks_wait=ranks_wait), answers[0]["transfers"]
        chosen = range(min(1, len(times) - 1), len(times))
        by_transfers = answers[0]["by_transfers"]
        by_latest = [iteration for iteration in chosen if by_transfers[iteration]]
        # The first one by a plan finishes no transfers: those of an iteration finish in the next one.
        by_latest = [iteration for iteration in by_latest if by_transfers[iteration - 1]] or by_latest
        if by_latest and latest != self._transfers:
            self.forget_times()
            self._transfers = latest
        for iteration in by_latest if latest == self._transfers else chosen:
            self.typical.add(answers, iteration)
            self.times += times[max(1, iteration) : iteration + 1]

    def forget_times(self) -> None:
        """Drops the times of all iterations so far, but not how long each rank computed in them."""
        self.times.clear()
        self.typical = TypicalIteration()

    def add_computing(self, seconds: list[list[float | None]]) -> None:
        """Adds the computing seconds of the iterations of a chunk, by rank."""
        self.computing = self.computing or [[] for _ in seconds]
        for known, new in zip(self.computing, seconds, strict=True):
            known.extend(new[1:])

    def add_metrics(self, metrics: Metrics, since_last: float) -> None:
        """Adds the metrics of an update, which was complete some seconds after the last one of any attempt."""
        self.metrics.append(metrics)
        attempt = self.attempts[-1]
        if len(self.attempts) > 1 and attempt.last_update == attempt.resumed_after:
            attempt = replace(attempt, recovery=since_last)
        self.attempts[-1] = replace(attempt, last_update=metrics.update)

    def end_attempt(self, ended: str) -> None:
        """Ends the present attempt for a reason."""
        self.attempts[-1] = replace(self.attempts[-1], ended=ended)

    def add_report(self, message: Message, ranks: int) -> list[Message]:
        """Adds one rank's message about an update; returns all of them once every rank has reported it, else none."""
        reports = self._reports.setdefault(message["step"], [])
        reports.append(message)
        return self._reports.pop(message["step"]) if len(reports) == ranks else []


def metrics_of(reports: list[Message], samples: int, model: str, checkpoints: CheckpointFolder) -> Metrics:
    """Combines the messages of all ranks about one update.

    Args:
        reports: one message of each rank.
        samples: samples of one update.
        model: name of the model, for the error.
        checkpoints: checkpoints that the training can resume from, for the error.

    Raises:
        RunError: the loss is not finite, or beyond what a record may hold.
    """
    # Of eager-SGD a rank that is late in its update finds it complete.
    share = sum(report["computed_share"] for report in reports)
    late = share < 1 - EXACT
    seconds = (min if late else max)(report["seconds"] for report in reports if report["computed"])
    rate = next((report["learning_rate"] for report in reports if "learning_rate" in report), None)
    step, loss = reports[0]["step"], sum(report["loss"] for report in reports)
    loss = loss / share if late and share else loss
    trained = (samples * share if late else samples) / seconds
    if serialization.may_hold(loss):
        return Metrics(step, float(loss), seconds, trained, rate)
    # fp16 overflowed, and the update was skipped.
    if any(report["skipped"] for report in reports):
        return Metrics(step, None, seconds, trained, rate)
    ranks = [f"rank {report['rank']}" for report in reports if not serialization.may_hold(report["loss"])]
    where = f", on {' and '.join(ranks)}" if ranks else ""
    raise RunError(
        f"the loss is {loss:g} after update {step} of {model}{where}{checkpoints.status()} "
        "(lower the learning rate, clip gradients, or look at the data)"
    )

"""How a live run measures: its conditions by turns, and the record of them.

All conditions are measured in the same processes, in rounds, so that a machine that grows slower during
the run does so for every one of them:

    warm-up │ asleep  awake  collocated  background alone │ … as many rounds as fit

Where a governor decides what the background may do, it first learns, in iterations that are not counted.

*awake* is the foreground alone with an idle-priority spinner on each core; it is the baseline, because a
foreground with gaps runs up to 10 % faster when anything at all keeps its core awake.
"""

import datetime
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from deeppool.base.live_sample import BESIDE
from deeppool.base.run_control import BoundInterval, RunControl
from deeppool.base.sharing import Sharing, policy_name
from deeppool.base.timeline import Span
from deeppool.collocation.background_group import BackgroundGroup, Spinners, WorkDone
from deeppool.collocation.condition_results import (
    BoundResults,
    ConditionResults,
    divide,
    harvest_margin,
    last_measured,
    slowdown_margin,
)
from deeppool.collocation.in_process_group import InProcessGroup
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.collocation.sample_publisher import SamplePublisher
from deeppool.device.environment import package_versions
from deeppool.execution.measurements import governor_results, stage_times, timeline
from deeppool.execution.ranks import Ranks
from deeppool.execution.stages import stages_of
from deeppool.job import Progress
from deeppool.planning.plan import Plan
from deeppool.processes.managed_process import Message
from deeppool.records.run_record import BackgroundResult, ForegroundResult, Phase, RunRecord
from deeppool.scheduling.governor import DENSE
from deeppool.simulation.plan.simulate import simulate

WARM_UP_STEPS = 3
LEAST_ROUNDS = 3
ROUND_SECONDS, ROUND_STEPS = 0.5, 4
"""Of a condition, before there are more rounds. What slows a shared machine down lasts for a second or a few, so turns
that are further apart say little of each other (measured in ``benchmarks/collocation-ladder``); but the shorter a turn,
the more of it runs with cold caches.
"""
BACKGROUND_STEPS = 2
"""In a turn, at least: each turn's end waits for the step under way."""
APART_SECONDS = 8.0
"""Rounds that lie closer are taken for alike where it is asked how sure the run is."""
LOOK_SECONDS = 0.5
"""Between two looks at the background while the foreground rests."""


def iterations_per_round(total: int, seconds: float, step: float = 0.0) -> list[int]:
    """Iterations of each round.

    Args:
        total: wanted.
        seconds: of one, about.
        step: seconds of a background's step.
    """
    turn = max(ROUND_STEPS, math.ceil(max(ROUND_SECONDS, BACKGROUND_STEPS * step) / seconds))
    rounds = min(total, max(LEAST_ROUNDS, total // turn))
    return [total // rounds + (index < total % rounds) for index in range(rounds)]


def rounds_per_block(rounds: int, seconds: float) -> int:
    """How many in a row are taken for alike, of rounds that last so long all together; but three stretches remain."""
    return max(1, min(math.ceil(APART_SECONDS * rounds / seconds), rounds // LEAST_ROUNDS))


class InterleavedMeasurement:
    """Of one run, whose processes are ready."""

    def __init__(
        self,
        plan: Plan,
        ranks: Ranks,
        neighbours: BackgroundGroup | InProcessGroup | None,
        spinners: Spinners | None,
        report: Progress,
        cores: int,
        sharing: Sharing | None,
        feed: SamplePublisher,
        run_control: RunControl,
    ) -> None:
        """Nothing is measured yet; without neighbours the foreground is all there is."""
        self.plan = plan
        self.ranks = ranks
        self.neighbours = neighbours
        self.spinners = spinners
        self.report = report
        self.cores = cores
        self.sharing = sharing
        self.feed, self.run_control = feed, run_control
        self.share = 0.05
        self._alike = 1
        """Rounds in a row that may be."""
        self.asleep, self.awake, self.collocated = ConditionResults(), ConditionResults(), ConditionResults()
        self.held = [BoundResults(None if sharing is None else sharing.max_slowdown, 0.0)]
        """Beside the background, by bound; the last one is held now."""
        self.spans: list[Span] = []
        """Of the background beside the foreground, in the last round."""
        self.alone = WorkDone()
        self._work: Callable[[], WorkDone] | None = None
        """What the background does now counts for this."""
        self.losses: list[float] = []
        self.last: list[Message] = []

    def measure(self, seconds: float | None, steps: int | None) -> None:
        """Warms up, then runs the rounds."""
        self.report("warming up", self.share)
        warm_up = self._train(WARM_UP_STEPS)
        iteration = min(warm_up[0]["times"][1:])
        if self.sharing is not None and self.sharing.learns:
            self.report("learning what the background costs", self.share)
            self.feed.condition = "learning"
            with self._background(WorkDone):
                self._train(DENSE)
        conditions = 1 if self.neighbours is None else 4
        budget = (30.0 if seconds is None else seconds) / conditions
        total = steps or max(2, int(budget / iteration))
        shares = iterations_per_round(
            total, iteration, 0.0 if self.neighbours is None else self.neighbours.step_seconds
        )
        rounds = len(shares)
        self._alike = rounds_per_block(rounds, total * iteration * conditions)
        for index, count in enumerate(shares):
            self.share = 0.1 + 0.9 * index / rounds
            self.report(f"measuring, round {index + 1} of {rounds}", self.share)
            self._round(count, count * iteration)
        self.report("done", 1.0)

    def _round(self, count: int, seconds: float) -> None:
        if self.neighbours is None or self.spinners is None:
            self.feed.condition = "awake"
            self.last = self._train(count)
            self.awake.add(self.last)
            return
        self.feed.condition = "asleep"
        self.asleep.add(self._train(count))
        self.feed.condition = "awake"
        with self.spinners.spinning():
            self.awake.add(self._train(count))
        self.feed.condition = "collocated"
        with self._background(lambda: self.held[-1].work):
            self.last = self._train(count)
        self.collocated.add(self.last)
        divide(self.last, self.held)
        self.spans = self.held[-1].work.spans
        self.feed.condition = "background alone"
        with self._background(lambda: self.alone):
            self._rest(seconds)

    def _rest(self, seconds: float) -> None:
        """The foreground does, and the background is looked at."""
        deadline = time.perf_counter() + seconds
        while (left := deadline - time.perf_counter()) > 0:
            self.ranks.rest(min(left, LOOK_SECONDS))
            self.feed.look()
            self._steer()

    @contextmanager
    def _background(self, work: Callable[[], WorkDone]) -> Iterator[None]:
        """The background trains; what it does counts for what ``work`` is when it ends, or when the bound changes."""
        assert self.neighbours is not None
        started = time.perf_counter()
        self.neighbours.begin()
        self._work = work
        yield
        self._work = None
        counted = work()
        steps, seconds = counted.steps, counted.seconds
        self.neighbours.measure(counted, started)
        counted.phases.append((counted.steps - steps, counted.seconds - seconds))

    def _train(self, count: int) -> list[Message]:
        condition = self.feed.condition
        answers = self.ranks.train(count, self._hear, beside=condition in BESIDE, awake=condition == "awake")
        # Each rank tells its part of the mean over the global batch; ranks outside the last stage tell 0.
        self.losses += [sum(parts) for parts in zip(*(answer["losses"] for answer in answers), strict=True)]
        return answers

    def _hear(self, told: Message) -> None:
        """Of an iteration."""
        self.report(f"iteration {told['step']}", self.share)
        self.feed.iteration(told)
        self._steer()

    def _steer(self) -> None:
        """Hands a new bound to the ranks; what is measured from here on is measured under it."""
        bound = self.run_control.take()
        if bound is None:
            return
        if self._work is not None and isinstance(self.neighbours, BackgroundGroup):
            self.neighbours.cut(self._work())
        self.held.append(BoundResults(bound, self.feed.now))
        self.ranks.change_bound(bound, len(self.held) - 1)

    def record(self, job: BackgroundJob | None) -> RunRecord:
        """Everything that was measured."""
        plan, batch = self.plan, self.plan.global_batch
        alone = self.awake.phase(batch, self._alike)
        held = last_measured(self.held)
        beside = alone if job is None else self.collocated.phase(batch, self._alike, held.turns)
        window = max(1, min(3, len(self.losses) // 2))
        foreground = ForegroundResult(
            iteration_time=beside.iteration_time,
            throughput=beside.throughput,
            idle_share=beside.idle_share,
            alone=alone,
            alone_asleep=None if job is None else self.asleep.phase(batch, self._alike),
            slowdown=beside.iteration_time.mean / alone.iteration_time.mean - 1,
            first_loss=_mean(self.losses[:window]),
            last_loss=_mean(self.losses[-window:]),
            slowdown_margin=None if job is None else slowdown_margin(self.awake.turns, held.turns, self._alike),
        )
        return RunRecord(
            model=plan.model,
            plan_iteration_time=plan.iteration_time,
            global_batch=batch,
            ranks=plan.gpus,
            cores=self.cores,
            device=plan.device,
            device_name=plan.device_name,
            backend="gloo" if plan.device == "cpu" else "nccl",
            policy=policy_name(self.sharing),
            foreground=foreground,
            background=None if job is None else self._background_result(job, alone),
            stages=stage_times(plan, stages_of(plan), self.last),
            timeline=timeline(plan, self.last, -1, self.spans),
            plan_timeline=simulate(plan).timeline,
            notes=_notes(plan, self.cores, changes=len(self.held) - 1),
            date=datetime.datetime.now().isoformat(timespec="seconds"),
            versions=package_versions("deeppool", "torch"),
            sharing=None if self.sharing is None else replace(self.sharing, max_slowdown=held.bound),
            bounds=self._bounds(job, alone),
            governors=governor_results(self.sharing, self.last),
        )

    def _bounds(self, job: BackgroundJob | None, alone: Phase) -> tuple[BoundInterval, ...]:
        if job is None or len(self.held) == 1:
            return ()
        return tuple(held.result(alone.iteration_time.mean, job.batch) for held in self.held)

    def _background_result(self, job: BackgroundJob, alone: Phase) -> BackgroundResult:
        assert self.neighbours is not None
        beside, by_itself = last_measured(self.held).work, self.alone
        losses = [*(loss for held in self.held for loss in held.work.losses), *by_itself.losses]
        throughput = job.batch * beside.steps / beside.seconds
        alone_throughput = job.batch * by_itself.steps / by_itself.seconds
        # Jobs that died early have nothing to compare with; the foreground's record stands all the same.
        harvest = throughput / alone_throughput if alone_throughput else 0.0
        idle = sum(alone.idle_share) / len(alone.idle_share)
        return BackgroundResult(
            model=job.name,
            batch=job.batch,
            priority=self.neighbours.priority,
            throughput=throughput,
            alone_throughput=alone_throughput,
            harvest=harvest,
            harvest_of_idle=harvest / idle if idle else 0.0,
            first_loss=_mean(losses[:1]),
            last_loss=_mean(losses[-1:]),
            ended=self.neighbours.ended,
            home=self.neighbours.home,
            harvest_margin=harvest_margin(by_itself, beside, self._alike),
        )


def _mean(losses: list[float]) -> float | None:
    """None where there are none, or one is no number: JSON has no word for that."""
    mean = sum(losses) / len(losses) if losses else math.nan
    return mean if math.isfinite(mean) else None


def _notes(plan: Plan, cores: int, changes: int) -> tuple[str, ...]:
    notes = [
        "gradients are those of one process on the global batch, up to reduction order; BatchNorm uses the "
        "statistics of each shard, as in DDP; dropout draws its masks per sample, the same ones whatever the plan"
    ]
    if plan.gpus > cores:
        notes.append(f"{plan.gpus} ranks shared {cores} cores: the times say nothing about {plan.gpus} GPUs")
    if changes:
        notes.append(
            "the bound was changed while it ran: iteration times, slowdown and the background's throughput are of the "
            "last bound under which any were measured, and bounds lists all; idle shares are over all collocated "
            "iterations"
        )
    return tuple(notes)

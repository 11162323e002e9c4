"""Drives the ranks of a training to the last update, and starts them again after a fault."""

import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

from deeppool.base.sharing import Sharing
from deeppool.errors import (
    InvalidValueError,
    PlanError,
    ProfileError,
    RankFailedError,
    RankRefusedError,
    RunCancelledError,
    RunError,
)
from deeppool.execution import checkpoint
from deeppool.execution.measurements import computing_seconds
from deeppool.execution.ranks import Ranks
from deeppool.planning.plan import Plan
from deeppool.planning.replanning.replan import replan
from deeppool.processes.managed_process import Message
from deeppool.processes.rank_group import private_folder, report_start
from deeppool.records.training_record import Attempt, TrainingRecord, format_loss
from deeppool.runs.train_record import build_training_record
from deeppool.runs.training_state import ReplanTrigger, TrainingProgress, TrainingSettings, metrics_of

CHUNK = 50
"""Updates per command to the ranks, unless a checkpoint is due earlier."""
SHORT_CHUNK = 5
"""Updates per command until the first background job trains: the ranks control it from the next command on."""


class RestartLoop:
    """Drives the ranks of a training to the last update, and starts them again after a fault."""

    def __init__(self, plan: Plan, sharing: Sharing | None, settings: TrainingSettings) -> None:
        """Starts nothing.

        Args:
            plan: the plan to start with.
            sharing: mechanisms by which background jobs share a device with the ranks; None: there are none.
            settings: everything that does not change during the training.
        """
        self._plan, self._sharing, self._settings = plan, sharing, settings
        self._progress = TrainingProgress()
        self._bound_changes = 0
        self._updated_at = time.perf_counter()
        """When the last update was complete on all ranks."""

    def run(self, restarts: int) -> None:
        """Trains to the last update, restarting at most ``restarts`` times after a fault."""
        settings, progress = self._settings, self._progress
        ended = ""
        while True:
            self._choose_gpus(ended)
            try:
                self._attempt()
                if progress.updates == settings.steps:
                    return
                ended = "more GPUs can be used"
            except RankFailedError as error:
                if progress.restarts == restarts or isinstance(error, RankRefusedError):
                    raise type(error)(f"{error}{settings.checkpoints.status()}") from error
                progress.restarts += 1
                if settings.supervisor is not None:
                    settings.supervisor.foreground_lost()
                ended = str(error)
                if settings.elastic is not None:
                    given_up = settings.elastic.record_fault(error.rank, settings.checkpoints.latest())
                    ended += "" if given_up is None else f"; GPU {given_up} is given up: its rank failed twice in a row"
            except RunCancelledError as error:
                raise RunCancelledError(f"{error}{settings.checkpoints.status()}") from error
            progress.end_attempt(ended)
            settings.report(f"starting again: {ended}", progress.updates / settings.steps)

    def record(self) -> TrainingRecord:
        """Builds the record of the training so far."""
        return build_training_record(self._plan, self._sharing, self._settings, self._progress)

    def _choose_gpus(self, ended: str) -> None:
        """Chooses the GPUs and the plan of the next attempt, which follows one that ended for a reason.

        Raises:
            RunError: too few GPUs are left, or there is no plan for as many.
        """
        settings, progress = self._settings, self._progress
        if settings.elastic is not None:
            try:
                plan = settings.elastic.plan_next()
            except RunError as error:
                raise RunError(f"{ended}{'; ' * bool(ended)}{error}{settings.checkpoints.status()}") from error
            if plan is not self._plan:
                self._plan = plan
                progress.forget_times()
                progress.computing.clear()
        plan, gpus = self._plan, settings.launcher.gpus
        layers = Counter(layer.gpu_count for layer in plan.layers)
        counts = tuple(sorted(layers.items(), reverse=True))
        progress.attempts.append(Attempt(gpus, plan.iteration_time, counts, 0, 0, None, ""))
        where = "" if settings.elastic is None else f" on GPUs {','.join(map(str, gpus))} of {settings.ranks}"
        settings.report(f"starting{where}", progress.updates / settings.steps)

    def _attempt(self) -> None:
        """Starts all ranks, and trains to the last update or until more GPUs can be used."""
        settings = self._settings
        with private_folder() as folder:
            try:
                pages = None if settings.supervisor is None else settings.supervisor.folder
                with Ranks(
                    self._plan,
                    settings.job,
                    folder,
                    settings.launcher,
                    sharing=self._sharing,
                    shared_pages=pages,
                    gradient_sync=settings.gradient_sync,
                    load_imbalance=settings.load_imbalance,
                ) as ranks:
                    ranks.wait_until_ready(report_start(settings.report, self._progress.updates / settings.steps))
                    self._progress.device_name = ranks.device_name
                    self._resume(ranks)
                    self._train(ranks, folder)
            finally:
                # No rank is left that could still be writing one.
                settings.checkpoints.discard_partial()

    def _resume(self, ranks: Ranks) -> None:
        """Brings the ranks to the latest checkpoint, or to the start where there is none."""
        settings, progress = self._settings, self._progress
        if settings.checkpoints.path is not None:
            ranks.check_shared_folder(settings.checkpoints.path)
        found = settings.checkpoints.find_resumable()
        if found is None:
            progress.resume(0)
            return
        path, updates = found
        if updates >= settings.steps:
            raise InvalidValueError(
                f"{path} has made {updates} updates already, steps is {settings.steps} (ask for more steps, or "
                "choose another folder for checkpoints)"
            )
        ranks.load(path, updates)
        progress.resume(updates)
        if not progress.metrics:
            progress.resumed_from = str(path)

    def _train(self, ranks: Ranks, folder: Path) -> None:
        settings, progress = self._settings, self._progress
        trigger = settings.replan_trigger
        replan_at = None if trigger is None else progress.updates + trigger.after
        while progress.updates < settings.steps:
            until = settings.checkpoints.next_due(progress.updates, settings.steps)
            if replan_at is not None and progress.updates < replan_at:
                until = min(until, replan_at)
            self._advance(ranks, until)
            if self._can_grow():
                return
            if trigger is not None and progress.updates == replan_at and not progress.proposal:
                self._replan(ranks, trigger, folder)

    def _can_grow(self) -> bool:
        """Whether the ranks should end at this checkpoint, because they can be started on more GPUs."""
        settings, progress = self._settings, self._progress
        if settings.elastic is None or progress.updates == settings.steps or progress.updates != progress.saved:
            return False
        return settings.elastic.can_grow()

    def _advance(self, ranks: Ranks, until: int) -> None:
        """Trains one chunk, to update ``until`` at most, and writes a checkpoint where one is due."""
        settings, progress, supervisor = self._settings, self._progress, self._settings.supervisor
        collocated = supervisor is not None and supervisor.has_started
        count = min(until - progress.updates, CHUNK if collocated or supervisor is None else SHORT_CHUNK)
        due = settings.checkpoints.next_due(progress.updates, settings.steps)
        answers = ranks.train(count, partial(self._on_update, ranks), report_all=True, collocated=collocated)
        if supervisor is not None:
            supervisor.foreground_trains()
        progress.last = answers
        waits = settings.gradient_sync is None or settings.gradient_sync.ranks_wait
        progress.add_times(answers, ranks_wait=waits)
        progress.add_computing(computing_seconds(answers))
        progress.updates += count
        if settings.checkpoints.path is not None and progress.updates == due:
            settings.report("writing a checkpoint", progress.updates / settings.steps)
            self._save(ranks)
            progress.saved = progress.updates

    def _save(self, ranks: Ranks, temporary: Path | None = None) -> Path:
        return self._settings.checkpoints.save(ranks.save, self._progress.updates, temporary)

    def _replan(self, ranks: Ranks, trigger: ReplanTrigger, folder: Path) -> None:
        """Plans with the measured times; if the new plan is accepted, the ranks change to it without losing state."""
        progress, settings = self._progress, self._settings
        try:
            found = replan(self._plan, trigger.profile, self.record())
        except (PlanError, ProfileError, InvalidValueError) as error:
            # Without a proposal the training goes on as it was.
            progress.proposal = f"no other plan: {error}"
            settings.report(progress.proposal, progress.updates / settings.steps)
            return
        progress.proposal = str(found)
        settings.report(progress.proposal, progress.updates / settings.steps)
        if trigger.decide is None or progress.updates == settings.steps or not trigger.decide(found):
            return
        # In the folder of checkpoints, which all machines share, if there is one.
        state = settings.checkpoints.latest()
        if state is None or checkpoint.read(state).updates != progress.updates:
            state = self._save(ranks, temporary=folder / "switch")
        ranks.switch(found.after, state)
        self._plan, progress.switched = found.after, True
        if settings.elastic is not None:
            settings.elastic.switch(found.after)
        progress.forget_times()

    def _on_update(self, ranks: Ranks, message: Message) -> None:
        """Handles one rank's message about an update; the last rank's message completes its metrics."""
        self._apply_bound(ranks)
        settings, plan = self._settings, self._plan
        reports = self._progress.add_report(message, plan.gpus)
        if not reports:
            return
        samples = plan.global_batch * settings.job.accumulation
        metrics = metrics_of(reports, samples, plan.model, settings.checkpoints)
        now = time.perf_counter()
        self._progress.add_metrics(metrics, now - self._updated_at)
        self._updated_at = now
        share = metrics.update / settings.steps
        settings.report(f"update {metrics.update} of {settings.steps}, loss {format_loss(metrics.loss)}", share)
        if settings.on_metrics is not None:
            settings.on_metrics(metrics)
        for event in () if settings.supervisor is None else settings.supervisor.events():
            settings.report(event, share)

    def _apply_bound(self, ranks: Ranks) -> None:
        """Sends a new bound to the ranks; ranks that are started again begin with it."""
        bound = self._settings.run_control.take()
        if bound is not None and self._sharing is not None:
            self._sharing = replace(self._sharing, max_slowdown=bound)
            self._bound_changes += 1
            ranks.change_bound(bound, self._bound_changes)

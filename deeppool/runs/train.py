"""Trains the user's own model by a plan: metrics while it trains, checkpoints, and going on after a fault."""

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from deeppool.base.run_control import RunControl
from deeppool.base.run_registry import registered
from deeppool.base.sharing import Policy, Sharing, find_sharing
from deeppool.collocation.job_queue import Background, JobQueue, job_lists
from deeppool.collocation.supervisor import Supervisor
from deeppool.errors import InvalidValueError
from deeppool.job import Progress
from deeppool.planning.plan import Plan
from deeppool.planning.replanning.replan import Replan
from deeppool.processes.launcher import Launcher, LocalLauncher
from deeppool.processes.rank_group import private_folder
from deeppool.profiling.table import Profile
from deeppool.records.training_record import Metrics, TrainingRecord
from deeppool.runs.restart_loop import ReplanTrigger, RestartLoop
from deeppool.training.training_job import TrainingJob


@registered
def train(
    plan: Plan,
    job: TrainingJob,
    *,
    steps: int,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 100,
    keep: int = 2,
    restarts: int = 0,
    replan_after: int | None = None,
    profile: Profile | None = None,
    launcher: Launcher | None = None,
    background: Background | None = None,
    policy: Policy | Sharing | None = None,
    max_slowdown: float | None = None,
    run_control: RunControl | None = None,
    on_proposal: Callable[[Replan], bool] | None = None,
    on_metrics: Callable[[Metrics], None] | None = None,
    on_progress: Progress | None = None,
) -> TrainingRecord:
    """Trains by a plan, as one process would on the global batch.

    Args:
        plan: made of the profile of ``job.capture()``.
        job: model, data, loss and rule.
        steps: updates that the training shall have made in the end, those before a checkpoint included.
        checkpoints: folder to keep them in; the training goes on from the latest one there, which may have been
            written by another plan or number of ranks. None: none.
        checkpoint_every: updates between two checkpoints; the last update is followed by one too.
        keep: checkpoints that stay.
        restarts: how often to start again from the last checkpoint after a rank was lost.
        replan_after: updates, from the start of this call, after which the times measured so far make a new plan.
        profile: that the plan was made of; needed for that.
        launcher: where; this machine unless given.
        background: jobs to train in the gaps, on this machine: a list of :class:`deeppool.BackgroundJob`, of which
            each rank's free place takes the next one, or ``{rank: [jobs]}``; or a model, by name or as a
            :class:`deeppool.job.Job`, on synthetic data beside every rank. Whatever they do, the training goes on.
        policy: how they share a device with a rank; ``priority`` unless given. See
            :data:`deeppool.base.sharing.POLICIES`.
        max_slowdown: of the training by them, at most: 0.03 is 3 %.
        run_control: by which another thread changes that bound while the training goes on.
        on_proposal: called with the new plan and what it would gain; True switches to it, without starting any
            process again, but through a checkpoint, so ranks on several machines need ``checkpoints``. None: the
            record tells of it, and the training keeps its plan.
        on_metrics: called with every update.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: a number that makes no sense, a checkpoint of another training, or a background that cannot
            be.
        RankFailedError: a rank died or hung, or could not reach the others, and no restart was left; every process
            has ended by then. A rank that refuses to go on, because the disk is full or the loss is no number, say,
            is not started again.
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
    if replan_after is not None and (replan_after < 1 or profile is None):
        raise InvalidValueError(
            f"replan_after must be at least 1 and needs the plan's profile, got {replan_after} and "
            f"{'no profile' if profile is None else 'a profile'}"
        )
    folder = None if checkpoints is None else Path(checkpoints)
    look = None if replan_after is None or profile is None else ReplanTrigger(replan_after, profile, on_proposal)
    report = on_progress or (lambda what, share: None)
    launcher = launcher or LocalLauncher(plan.device, plan.gpus)
    if look is not None and look.decide is not None and folder is None and not launcher.same_files:
        raise InvalidValueError(
            "ranks on several machines change their plan through a checkpoint, and there is no folder for it (give "
            "checkpoints, in a folder that all machines share, or leave on_proposal out)"
        )
    sharing = _sharing(background, policy, max_slowdown)
    jobs = None if sharing is None or background is None else JobQueue(job_lists(background, plan), plan.gpus)
    with ExitStack() as stack:
        run_control = stack.enter_context(closing(run_control or RunControl()))
        run_control.open(sharing)
        host = None
        if jobs is not None and sharing is not None:
            # Longer than an attempt: a lost rank is no reason to end them.
            host = stack.enter_context(_host(jobs, launcher, plan, sharing, stack.enter_context(private_folder())))
        attempts = RestartLoop(
            plan,
            job,
            steps,
            folder,
            checkpoint_every,
            keep,
            on_metrics,
            report,
            look,
            launcher,
            sharing,
            run_control,
            host,
        )
        attempts.complete(restarts)
    report("done", 1.0)
    return attempts.record()


def _sharing(
    background: Background | None, policy: Policy | Sharing | None, max_slowdown: float | None
) -> Sharing | None:
    """None where there is no background."""
    if background is None:
        if max_slowdown is not None or policy not in (None, "none"):
            raise InvalidValueError("policy and max_slowdown are about a background job (give background=)")
        return None
    found = find_sharing("priority" if policy is None else policy, max_slowdown)
    if found is not None and found.home == "thread":
        raise InvalidValueError(
            "background jobs of a training have processes of their own, so that none can end it: got home 'thread' "
            "(leave it 'auto'; a thread of the rank is for deeppool.launch, which measures)"
        )
    return found


def _host(jobs: JobQueue, launcher: Launcher, plan: Plan, sharing: Sharing, folder: Path) -> Supervisor:
    if not isinstance(launcher, LocalLauncher):
        raise InvalidValueError(
            "background jobs of a training run on one machine, that of the launcher (train without background=, or "
            "submit them to a cluster: deeppool cluster submit --background)"
        )
    # Background jobs may start before the ranks do, and a place knows its slots when it was given a folder.
    launcher.hand_over(folder)
    return Supervisor(jobs, launcher, plan.gpus, plan.device, sharing, folder)

"""dp.train: trains a model by a plan, with metrics, checkpoints, background jobs and restarts after a fault."""

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import whole_number
from deeppool.base.run_control import RunControl
from deeppool.base.run_registry import registered
from deeppool.base.sharing import Policy, Sharing, find_sharing
from deeppool.collectives.partial.load_imbalance import Delays
from deeppool.collocation.job_queue import Background, JobQueue, job_lists
from deeppool.collocation.supervisor import Supervisor
from deeppool.collocation.trials import Trials, trial_run
from deeppool.device.kinds import check_common_clock
from deeppool.errors import InvalidValueError
from deeppool.execution.checkpoint_folder import CheckpointFolder
from deeppool.execution.sync_method import GradientSyncMethod
from deeppool.job import Progress
from deeppool.planning.plan import Plan
from deeppool.planning.replanning.profile_correction import check_profile_matches
from deeppool.planning.replanning.replan import Replan
from deeppool.processes.launcher import Launcher, LocalLauncher
from deeppool.processes.rank_group import private_folder
from deeppool.profiling.table import Profile
from deeppool.records.training_record import Metrics, TrainingRecord
from deeppool.runs.elastic_ranks import ElasticRanks, check_elastic
from deeppool.runs.restart_loop import RestartLoop
from deeppool.runs.training_state import ReplanTrigger, TrainingSettings
from deeppool.training.training_job import TrainingJob


@interruptible
@typed
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
    min_ranks: int | None = None,
    replan_after: int | None = None,
    profile: Profile | None = None,
    launcher: Launcher | None = None,
    background: Annotated[Background | Trials | None, "its message says what to put a job in"] = None,
    policy: Policy | Sharing | None = None,
    max_slowdown: float | None = None,
    gradient_sync: GradientSyncMethod | None = None,
    load_imbalance: Delays | None = None,
    run_control: RunControl | None = None,
    on_proposal: Callable[[Replan], bool] | None = None,
    on_metrics: Callable[[Metrics], None] | None = None,
    on_progress: Progress | None = None,
) -> TrainingRecord:
    """Trains a model by a plan, to the same weights as one process on the global batch.

    Args:
        plan: made from the profile of ``job.capture()``.
        job: model, data, loss and optimizer.
        steps: updates at the end of the training, those before a checkpoint included.
        checkpoints: folder of the training's checkpoints. It resumes from the latest one there, which may have been
            written under another plan or number of ranks. None: no checkpoints.
        checkpoint_every: updates between two checkpoints; one more is written after the last update.
        keep: number of checkpoints to keep.
        restarts: number of times to start the ranks again from the last checkpoint after one was lost.
        min_ranks: least number of ranks to go on with after a GPU was lost. Each start after a fault plans again for
            the GPUs that are left, and goes on from the last checkpoint with the same batches. When a GPU is back, the
            ranks start again on more at the next checkpoint, which counts as no restart. None: each start has all
            ranks of the plan. See :class:`deeppool.runs.elastic_ranks.ElasticRanks`.
        replan_after: updates of this call after which to plan again with the measured times.
        profile: the profile that the plan was made from; required by ``min_ranks`` and ``replan_after``.
        launcher: starts the processes. Default: on this machine.
        background: background jobs to train in the gaps, on this machine: a list of :class:`deeppool.BackgroundJob`,
            which the ranks take in order as they become free, or ``{rank: [jobs]}``; or a model, by name or as a
            :class:`deeppool.job.Job`, trained on synthetic data beside every rank; or hyper-parameter trials,
            :class:`deeppool.Trials`. A failing job does not affect the training.
        policy: how background jobs share a device with a rank, see :data:`deeppool.base.sharing.POLICIES`. Default:
            ``priority``.
        max_slowdown: bound on the slowdown of the training by them: 0.03 is 3 %.
        gradient_sync: how ranks sum their gradients: :class:`deeppool.TransferScheduler`, :class:`deeppool.EagerSGD`
            or :class:`deeppool.WaveletDataParallel`. Default: in buckets, each iteration with its whole update.
        load_imbalance: delays that ranks are given before they compute, to study what late ranks cost: a function of
            rank and update, as those of :mod:`deeppool.collectives.partial.load_imbalance`.
        run_control: lets another thread change that bound during the training.
        on_proposal: called with the new plan and its predicted gain, unless no update is left; returning True switches
            to it. No process is started again, but the state passes through a checkpoint, so ranks on several machines
            need ``checkpoints``. None: the proposal is recorded, and the plan stays.
        on_metrics: called with the metrics of every update.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: an argument out of range, a checkpoint of another training, an invalid background, or a plan
            for a device in virtual time.
        PlanError: ``profile`` is of another graph, device or precision than the plan, or no plan for ``min_ranks`` GPUs
            fits into their memory.
        RankFailedError: a rank died, hung or could not reach the others, and no restart was left; every process has
            ended by then. A rank that refuses to continue, for example because the disk is full or the loss is not
            finite, is not started again.
        RunError: the loss is not finite, another training writes to the folder of checkpoints, or fewer than
            ``min_ranks`` GPUs are left.
        DocumentError: a checkpoint cannot be written or read.
    """
    check_common_clock(plan.device)
    if gradient_sync is not None and (isinstance(gradient_sync, type) or not hasattr(gradient_sync, "driver")):
        name = getattr(gradient_sync, "__name__", type(gradient_sync).__name__)
        raise InvalidValueError(
            f"gradient_sync must be a method such as dp.TransferScheduler(), got {name} (a WaveletModelParallel has "
            "partitions of its own in place of a plan: use it in processes that have joined torch.distributed)"
        )
    steps, restarts = whole_number("steps", steps), whole_number("restarts", restarts, 0)
    checkpoint_every, keep = whole_number("checkpoint_every", checkpoint_every), whole_number("keep", keep)
    if replan_after is not None:
        replan_after = whole_number("replan_after", replan_after)
        if profile is None:
            raise InvalidValueError(f"replan_after {replan_after} needs the plan's profile, got none (give profile=)")
        check_profile_matches(plan, profile)
    launcher = launcher or LocalLauncher(plan.device, plan.gpus)
    elastic = None
    if min_ranks is not None:
        elastic = _elastic_ranks(plan, profile, launcher, min_ranks, restarts, checkpoints, background)
    if replan_after is not None and on_proposal is not None and checkpoints is None and not launcher.same_files:
        raise InvalidValueError(
            "ranks on several machines change their plan through a checkpoint, and there is no folder for it (give "
            "checkpoints, in a folder that all machines share, or leave on_proposal out)"
        )
    sharing = _sharing(background, policy, max_slowdown)
    report = on_progress or (lambda what, share: None)
    folder_of_checkpoints = CheckpointFolder(
        path=None if checkpoints is None else Path(checkpoints),
        every=checkpoint_every,
        keep=keep,
        model=plan.model,
        graph_fingerprint=plan.graph_fingerprint,
        global_batch=plan.global_batch,
    )
    with ExitStack() as stack:
        run_control = stack.enter_context(closing(run_control or RunControl()))
        run_control.open(sharing)
        stack.enter_context(folder_of_checkpoints.locked())
        supervisor = trials = None
        if sharing is not None and background is not None:
            if isinstance(background, Trials):
                trials = stack.enter_context(trial_run(background))
                background = trials.jobs()
            jobs = JobQueue(job_lists(background, plan), plan.gpus)
            # Background jobs outlive an attempt: a lost rank is no reason to end them.
            folder = stack.enter_context(private_folder())
            supervisor = stack.enter_context(_supervisor(jobs, launcher, plan, sharing, folder))
        settings = TrainingSettings(
            job=job,
            steps=steps,
            ranks=plan.gpus,
            launcher=launcher,
            elastic=elastic,
            checkpoints=folder_of_checkpoints,
            replan_trigger=(
                None if replan_after is None or profile is None else ReplanTrigger(replan_after, profile, on_proposal)
            ),
            run_control=run_control,
            supervisor=supervisor,
            gradient_sync=gradient_sync,
            load_imbalance=load_imbalance,
            on_metrics=on_metrics,
            report=report,
        )
        loop = RestartLoop(plan, sharing, settings)
        loop.run(restarts)
    for event in () if supervisor is None else supervisor.events():
        report(event, 1.0)
    report("done", 1.0)
    return loop.record() if trials is None else replace(loop.record(), trials=trials.record())


def _elastic_ranks(
    plan: Plan,
    profile: Profile | None,
    launcher: Launcher,
    min_ranks: int,
    restarts: int,
    checkpoints: str | os.PathLike[str] | None,
    background: Background | Trials | None,
) -> ElasticRanks:
    """Returns what chooses the GPUs of a training with fewer ranks, if it can be one."""
    min_ranks = check_elastic(plan, min_ranks, profile, checkpoints, restarts)
    if background is not None:
        raise InvalidValueError(
            "background jobs are each beside one rank of the plan, and with min_ranks any rank may end (leave one of "
            "them out, or submit both to a cluster of cores: deeppool cluster submit --background)"
        )
    assert profile is not None
    return ElasticRanks(plan, profile, launcher, min_ranks)


def _sharing(
    background: Background | Trials | None, policy: Policy | Sharing | None, max_slowdown: float | None
) -> Sharing | None:
    """Returns how background jobs share devices with the ranks; None: there are none."""
    if background is None:
        if max_slowdown is not None or policy not in (None, "none"):
            raise InvalidValueError("policy and max_slowdown are about a background job (give background=)")
        return None
    found = find_sharing("priority" if policy is None else policy, max_slowdown)
    if found is not None and found.home == "thread":
        raise InvalidValueError(
            "background jobs of a training run in processes of their own, so that none can end it: got home 'thread' "
            "(leave it 'auto'; deeppool.launch can run one in a thread of the rank)"
        )
    return found


def _supervisor(jobs: JobQueue, launcher: Launcher, plan: Plan, sharing: Sharing, folder: Path) -> Supervisor:
    if not isinstance(launcher, LocalLauncher):
        raise InvalidValueError(
            "background jobs of a training run on one machine, that of the launcher (train without background=, or "
            "submit them to a cluster of cores: deeppool cluster submit --background)"
        )
    # Background jobs may start before the ranks do, and a launcher has slots only once it was given a folder.
    launcher.distribute_files(folder)
    return Supervisor(jobs, launcher, ranks=plan.gpus, device=plan.device, sharing=sharing, folder=folder)

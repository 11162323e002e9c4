"""Processes of one measured run: ranks, background jobs beside them, and spinners for the baseline."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deeppool.collocation.background_group import BackgroundGroup, Spinners
from deeppool.collocation.background_placement import THREAD, BackgroundSetup
from deeppool.collocation.in_process_group import PROGRAM, InProcessGroup
from deeppool.collocation.job_queue import save_background_job
from deeppool.execution.ranks import Ranks
from deeppool.graph.models.workloads import find_workload, save_model
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.processes.launcher import Launcher, LocalLauncher
from deeppool.processes.rank_group import private_folder

WORKER = "deeppool.execution.worker"
BackgroundJobs = BackgroundGroup | InProcessGroup
"""The background jobs of all ranks: in processes of their own, or in those of the ranks."""


@dataclass(frozen=True, slots=True)
class CollocatedProcesses:
    """Processes of one measured run, all ready."""

    cores: int
    """Cores or GPUs that the ranks have to themselves."""
    ranks: Ranks
    background: BackgroundJobs | None = None
    spinners: Spinners | None = None


@contextmanager
def collocated_processes(
    plan: Plan,
    setup: BackgroundSetup | None,
    *,
    launcher: Launcher | None,
    learning_rate: float,
    seed: int,
    emulated_rank: int | None = None,
    reports_progress: bool = False,
) -> Iterator[CollocatedProcesses]:
    """Starts ranks, background jobs and spinners and waits until they are ready; ends all of them with the block.

    Args:
        plan: plan that the ranks run.
        setup: the background job; None: the ranks run alone.
        launcher: starts the processes. Default: on this machine.
        learning_rate: learning rate of the foreground's SGD.
        seed: random seed of the foreground's weights and data.
        emulated_rank: the one rank to run, emulating the others; None: all ranks run.
        reports_progress: whether background jobs report their progress while they train.

    Raises:
        CaptureError: the plan's model is unknown here.
        RunError: the plan or the background cannot start.
    """
    count = plan.gpus if emulated_rank is None else 1
    launcher = launcher or LocalLauncher(plan.device, count)
    with ExitStack() as stack:
        folder = stack.enter_context(private_folder())
        # What the ranks need is written first: starting them copies the folder to their machines.
        job_setup = {} if setup is None else save_background_job(setup.job, folder)
        job = Job(_save_model(plan, folder), plan.input_shape, plan.global_batch, learning_rate, seed=seed)
        in_process = setup is not None and setup.placement == THREAD
        ranks = stack.enter_context(
            Ranks(
                plan,
                job,
                folder,
                launcher,
                sharing=None if setup is None else setup.sharing,
                emulate=emulated_rank,
                program=PROGRAM if in_process else WORKER,
            )
        )
        background: BackgroundJobs | None = None
        spinners = None
        if setup is not None and in_process:
            background = InProcessGroup(setup.job, ranks, job_setup)
        elif setup is not None:
            background = stack.enter_context(
                BackgroundGroup(
                    setup, launcher, count, job_setup, device=plan.device, reports_progress=reports_progress
                )
            )
        if setup is not None:
            spinners = stack.enter_context(Spinners(launcher, count, setup.sharing, plan.device))
        for started in (ranks, background, spinners):
            if started is not None:
                started.wait_until_ready()
        yield CollocatedProcesses(launcher.cores, ranks, background, spinners)


def _save_model(plan: Plan, folder: Path) -> str:
    """Makes the plan's model available to the ranks; returns its name."""
    if plan.origin is not None:
        return save_model(plan.origin.source, folder)
    find_workload(plan.model)
    return plan.model

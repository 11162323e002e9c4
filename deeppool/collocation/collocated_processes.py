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
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.processes.launcher import Launcher

WORKER = "deeppool.execution.worker"
BackgroundJobs = BackgroundGroup | InProcessGroup
"""The background jobs of all ranks: in processes of their own, or in those of the ranks."""


@dataclass(frozen=True, slots=True)
class CollocatedProcesses:
    """Processes of one measured run, all ready."""

    ranks: Ranks
    background: BackgroundJobs | None = None
    spinners: Spinners | None = None


@contextmanager
def collocated_processes(
    plan: Plan,
    job: Job,
    folder: Path,
    launcher: Launcher,
    setup: BackgroundSetup | None,
    *,
    emulated_rank: int | None = None,
    reports_progress: bool = False,
) -> Iterator[CollocatedProcesses]:
    """Starts ranks, background jobs and spinners and waits until they are ready; ends all of them with the block.

    Args:
        plan: what the ranks run.
        job: the foreground's model and training.
        folder: private, for the files of this run.
        launcher: starts the processes.
        setup: the background job; None: the ranks run alone.
        emulated_rank: the one rank to run, emulating the others; None: all ranks run.
        reports_progress: whether background jobs report their progress while they train.
    """
    count = plan.gpus if emulated_rank is None else 1
    # Before the ranks start: starting them copies the folder to their machines.
    job_setup = {} if setup is None else save_background_job(setup.job, folder)
    with ExitStack() as stack:
        if setup is None:
            ranks = stack.enter_context(Ranks(plan, job, folder, launcher, emulate=emulated_rank))
            ranks.wait_until_ready()
            yield CollocatedProcesses(ranks)
            return
        program = PROGRAM if setup.placement == THREAD else WORKER
        ranks = stack.enter_context(
            Ranks(plan, job, folder, launcher, setup.sharing, emulate=emulated_rank, program=program)
        )
        background: BackgroundJobs
        if setup.placement == THREAD:
            background = InProcessGroup(setup.job, ranks, job_setup)
        else:
            background = stack.enter_context(
                BackgroundGroup(
                    setup, launcher, count, job_setup, device=plan.device, reports_progress=reports_progress
                )
            )
        spinners = stack.enter_context(Spinners(launcher, count, setup.sharing, plan.device))
        for started in (ranks, background, spinners):
            started.wait_until_ready()
        yield CollocatedProcesses(ranks, background, spinners)

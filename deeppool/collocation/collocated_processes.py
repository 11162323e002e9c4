"""Processes of one measured run: ranks, background jobs beside them, and spinners for the baseline."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from deeppool.collectives.partial.load_imbalance import Delays
from deeppool.collocation.background_jobs import BackgroundJobs
from deeppool.collocation.background_placement import THREAD, BackgroundSetup
from deeppool.collocation.helper_processes import BACKGROUND, HelperProcesses
from deeppool.collocation.job_queue import save_background_job
from deeppool.collocation.rank_channel import PROGRAM, RankChannel
from deeppool.collocation.spinners import Spinners
from deeppool.device.kinds import find_kind
from deeppool.execution.ranks import Ranks
from deeppool.graph.models.workloads import check_buildable, save_model
from deeppool.job import Job, Progress
from deeppool.planning.plan import Plan
from deeppool.processes.launcher import Launcher, LocalLauncher
from deeppool.processes.rank_group import private_folder, report_start

WORKER = "deeppool.execution.worker"


@dataclass(frozen=True, slots=True)
class CollocatedProcesses:
    """Processes of one measured run: ranks that are ready, and what runs beside them."""

    cores: int
    """Cores or GPUs that the ranks have to themselves."""
    ranks: Ranks
    background: BackgroundJobs | None = None
    """On cores ready. On GPUs the ranks make two iterations before it is, and then hold the memory that they need."""
    spinners: Spinners | None = None
    """None where there is no background, or ranks compute on devices that do not sleep."""


@contextmanager
def collocated_processes(
    plan: Plan,
    setup: BackgroundSetup | None,
    *,
    launcher: Launcher | None,
    learning_rate: float,
    seed: int,
    emulated_rank: int | None = None,
    load_imbalance: Delays | None = None,
    reports_progress: bool = False,
    report: Progress = lambda what, share: None,
) -> Iterator[CollocatedProcesses]:
    """Starts ranks, background jobs and spinners; ends all of them with the block.

    All are ready, but for background jobs on GPUs.

    Args:
        plan: plan that the ranks run.
        setup: the background job; None: the ranks run alone.
        launcher: starts the processes. Default: on this machine.
        learning_rate: learning rate of the foreground's SGD.
        seed: random seed of the foreground's weights and data.
        emulated_rank: the one rank to run, emulating the others; None: all ranks run.
        load_imbalance: delays of the ranks before they compute; None: none.
        reports_progress: whether background jobs report their progress while they train.
        report: see :data:`deeppool.job.Progress`.

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
                load_imbalance=load_imbalance,
                program=PROGRAM if in_process else WORKER,
            )
        )
        if setup is None:
            ranks.wait_until_ready(report_start(report))
            yield CollocatedProcesses(launcher.cores, ranks)
            return
        jobs, others = stack.enter_context(HelperProcesses()), stack.enter_context(HelperProcesses())
        job_setup |= {"device": plan.device, "sharing": asdict(setup.sharing)}
        in_ranks, on_cores = RankChannel(ranks, job_setup), find_kind(plan.device).on_cores

        def start_jobs() -> None:
            for rank in range(count):
                jobs.start(launcher, rank, BACKGROUND, "background job", **job_setup)

        if on_cores and not in_process:
            start_jobs()  # they get ready while the ranks do
        # A GPU does not sleep as a core does.
        spinners = Spinners(others, launcher, count, setup.sharing) if on_cores else None
        ranks.wait_until_ready(report_start(report))
        background = BackgroundJobs(
            setup.job,
            in_ranks if in_process else jobs,
            start=in_ranks.start if in_process else None if on_cores else start_jobs,
            reports_progress=reports_progress,
            on_cores=on_cores,
        )
        if on_cores:
            report(f"starting: waiting for the first step of {setup.job.name} in the background", 0.0)
            background.wait_until_ready()
        if spinners is not None:
            spinners.wait_until_ready()
        yield CollocatedProcesses(launcher.cores, ranks, background, spinners)


def _save_model(plan: Plan, folder: Path) -> str:
    """Makes the plan's model available to the ranks; returns its name."""
    if plan.origin is not None:
        return save_model(plan.origin.source, folder)
    check_buildable(plan.model)
    return plan.model

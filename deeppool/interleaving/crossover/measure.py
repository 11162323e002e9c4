"""Measures what a step of each of several jobs costs, to decide which to run together."""

from collections.abc import Sequence

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import whole_number
from deeppool.base.run_registry import registered
from deeppool.collectives.patterns import LIBRARY
from deeppool.device.kinds import DeviceName
from deeppool.device.protocol import Precision
from deeppool.interleaving.crossover.named_jobs import named_jobs
from deeppool.interleaving.crossover.round_time import JobCosts
from deeppool.interleaving.crossover.scheduler import CrossoverScheduler
from deeppool.job import Progress
from deeppool.processes.launcher import Launcher
from deeppool.training.training_job import TrainingJob


@interruptible
@typed
@registered
def measure_jobs(
    jobs: Sequence[TrainingJob],
    *,
    global_batch: int | Sequence[int],
    ranks: int = 2,
    device: DeviceName = "cpu",
    precision: Precision = "fp32",
    all_reduce: str = LIBRARY,
    steps: int = 6,
    launcher: Launcher | None = None,
    on_progress: Progress | None = None,
) -> tuple[JobCosts, ...]:
    """Measures computing and communication of jobs on ranks that hold one of them at a time.

    Args:
        jobs: jobs; their own objects are not trained.
        global_batch: samples of an update over all ranks: of every job, or of each.
        ranks: processes that every job trains on.
        device: ``cpu``, ``cuda`` or ``emulated``.
        precision: precision of products and convolutions.
        all_reduce: what sums gradients, as for :class:`deeppool.CrossoverScheduler`.
        steps: updates of each job; the first two warm up.
        launcher: starts the processes. Default: on this machine.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: an argument out of range.
        RankFailedError: a rank failed, or a job has too little memory even alone.
    """
    ranks, steps = whole_number("ranks", ranks), whole_number("steps", steps, 3)
    batches = [batch for _, batch in named_jobs(jobs, global_batch, ranks, all_reduce).values()]
    scheduler = CrossoverScheduler(
        jobs[:1],
        global_batch=batches[:1],
        ranks=ranks,
        device=device,
        precision=precision,
        all_reduce=all_reduce,
        launcher=launcher,
    )
    found: list[JobCosts] = []
    with scheduler:
        for number, (job, batch) in enumerate(zip(jobs, batches, strict=True)):
            if on_progress is not None:
                on_progress(f"measuring job {number + 1} of {len(batches)}", number / len(batches))
            if number:
                scheduler.remove(found[-1].name)
                scheduler.add(job, global_batch=batch)
            found += scheduler.measure(steps)
    return tuple(found)

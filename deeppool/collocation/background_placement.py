"""Where a background runs: in a process of its own, or in a thread of the rank that it runs beside.

Two threads of one process share a GPU by the priorities of their streams and see each other's stamps, so that every
mechanism works; but what ends the device's context ends both. Two processes take turns on it, unless MPS runs there,
and each is safe from the other.
"""

from deeppool.base.sharing import Sharing
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.device.abilities import mps
from deeppool.errors import InvalidValueError
from deeppool.training.training_job import Training, TrainingJob

THREAD = "thread of the rank"
PROCESS = "process"
PROCESS_UNDER_MPS = "process, under MPS"


def place_background(sharing: Sharing, device: str, job: BackgroundJob) -> tuple[str, str | None]:
    """Where a background runs, as a record says it; and why it is not where it would be by itself, or None.

    A daemon of MPS is never started or stopped here; processes use one that runs.

    Args:
        sharing: what was asked for.
        device: ``cpu`` or ``cuda``.
        job: the background.

    Raises:
        InvalidValueError: a thread was asked for, and cannot be had.
    """
    problem = training_problem(job.job) if isinstance(job.job, TrainingJob) else None
    if sharing.home == "thread":
        if problem is not None:
            raise InvalidValueError(
                f"a background in a thread of the rank cannot have {problem} (leave home 'auto', or give it 'process')"
            )
        if device == "cpu" and (sharing.share is not None or sharing.priority != "normal"):
            raise InvalidValueError(
                f"a background in a thread of the rank runs at the rank's own priority on a CPU, got {sharing} "
                "(give it priority 'normal' and no share, or home 'process')"
            )
        return THREAD, None
    if device == "cuda" and sharing.home == "auto" and problem is None:
        return THREAD, None
    under_mps = device == "cuda" and mps().startswith("running")
    why = None
    if device == "cuda" and sharing.home == "auto":
        why = f"the background is in a process of its own: in a thread of the rank it could not have {problem}"
    return PROCESS_UNDER_MPS if under_mps else PROCESS, why


def training_problem(training: Training) -> str | None:
    """What keeps a rule of updates from being pieces that a device repeats by itself, or None."""
    for given, what in (
        (training.accumulation > 1, f"accumulation {training.accumulation}"),
        (training.clip_norm is not None, f"clip_norm {training.clip_norm}"),
        (training.schedule is not None, "a schedule of its learning rate"),
    ):
        if given:
            return what
    return None

"""Chooses where a background runs: in a process of its own, or in a thread of the rank beside which it runs.

Two threads of one process share a GPU by the priorities of their streams and see each other's stamps, so every
mechanism works; but what ends the device's context ends both. Two processes take turns on a GPU, unless MPS runs there,
and each survives the other.
"""

from dataclasses import dataclass

from deeppool.base.sharing import Sharing
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.device.abilities import mps
from deeppool.errors import InvalidValueError
from deeppool.training.training_job import Training, TrainingJob

THREAD = "thread of the rank"
PROCESS = "process"
PROCESS_UNDER_MPS = "process, under MPS"


@dataclass(frozen=True, slots=True)
class BackgroundSetup:
    """The background job of a measured run, the same beside every rank."""

    job: BackgroundJob
    sharing: Sharing
    """Mechanisms by which it shares a device with a rank."""
    placement: str
    """:data:`THREAD`, :data:`PROCESS` or :data:`PROCESS_UNDER_MPS`."""
    placement_reason: str | None = None
    """Reason for a placement other than the device's default; None: it is the default."""


def place_background(sharing: Sharing, device: str, job: BackgroundJob) -> tuple[str, str | None]:
    """Chooses where a background runs; returns placement and reason as in :class:`BackgroundSetup`.

    Never starts or stops an MPS daemon; processes use one that runs.

    Args:
        sharing: sharing mechanisms that the caller requested.
        device: ``cpu`` or ``cuda``.
        job: the background.

    Raises:
        InvalidValueError: a thread was asked for and is not possible.
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
    if device == "cpu":
        return PROCESS, None
    process = PROCESS_UNDER_MPS if mps().startswith("running") else PROCESS
    if sharing.home != "auto":
        return process, None
    if problem is None:
        return THREAD, None
    return process, f"the background is in a process of its own: in a thread of the rank it could not have {problem}"


def training_problem(training: Training) -> str | None:
    """Returns the part of a training that cannot be captured as pieces for a device to replay; None: there is none."""
    for given, what in (
        (training.accumulation > 1, f"accumulation {training.accumulation}"),
        (training.clip_norm is not None, f"clip_norm {training.clip_norm}"),
        (training.schedule is not None, "a schedule of its learning rate"),
    ):
        if given:
            return what
    return None

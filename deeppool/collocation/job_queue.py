"""Background jobs, and the queues in which they wait for a free rank: one for all ranks, or one for each."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any

from deeppool.base.arguments import check_fields
from deeppool.base.number_checks import as_whole, positive_number, whole_number
from deeppool.errors import InvalidValueError
from deeppool.graph.models.workloads import find_workload
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.records.training_record import BackgroundOutcome
from deeppool.training.training_job import TrainingJob, save_job
from deeppool.units import parse_bytes

BATCH = 4
"""Default samples per step of a background: short steps end sooner."""


@dataclass(frozen=True)
class BackgroundJob:
    """A training in the gaps that a foreground leaves, on one GPU or core."""

    job: TrainingJob | Job
    """Your own training; or a model on synthetic data, which has its own batch."""
    _: KW_ONLY
    batch: int = BATCH
    """Samples per step."""
    steps: int | None = None
    """Updates at the end of the job, those before a checkpoint included; None: it runs until the foreground ends."""
    checkpoints: str | os.PathLike[str] | None = None
    """Folder of this job's checkpoints, not shared with another job; it resumes from the latest one. None: it writes
    no checkpoints."""
    checkpoint_every: int = 100
    """Steps between two checkpoints; one more is written when the job ends or is stopped."""
    memory: float | str | None = None
    """Memory budget of its processes, in bytes or as ``2GB``; above it the job writes a checkpoint and is stopped."""
    restarts: int = 0
    """Restarts of the job after it crashed or hung."""
    label: str | None = None
    """Name in messages and records. Default: that of its model."""
    on_end: Callable[[BackgroundOutcome], str] | None = None
    """Called with the outcome of the job when it has ended, in a thread of the launcher; returns what to report, and
    must not raise. A job that is started again has not ended."""

    def __post_init__(self) -> None:
        if isinstance(self.job, Job):
            object.__setattr__(self, "batch", self.job.batch)
        for name, value, least in (
            ("batch", self.batch, 1),
            ("steps", self.steps, 1),
            ("checkpoint_every", self.checkpoint_every, 1),
            ("restarts", self.restarts, 0),
        ):
            if value is not None:
                object.__setattr__(self, name, whole_number(f"{name} of a background job", value, least))
        check_fields(self)
        if self.budget is not None:
            positive_number("memory of a background job", self.budget, "in bytes, or as '2GB'")

    @property
    def step_samples(self) -> int:
        """Samples of a step, which is an update: of several batches where gradients accumulate."""
        return self.batch * (self.job.accumulation if isinstance(self.job, TrainingJob) else 1)

    @property
    def name(self) -> str:
        """Its label, or the name of its model."""
        if self.label is not None:
            return self.label
        return self.job.model if isinstance(self.job, Job) else self.job.model_name

    @property
    def budget(self) -> float | None:
        """``memory`` in bytes."""
        return parse_bytes(self.memory) if isinstance(self.memory, str) else self.memory


def synthetic_job(background: str | Job, plan: Plan, batch: int | None = None) -> Job:
    """Returns a background that trains a model on synthetic data.

    For a model given by name, samples have the foreground's shape where both models take the same kind of input.

    Raises:
        CaptureError: an unknown model.
    """
    if isinstance(background, Job):
        find_workload(background.model)
        return background
    inputs = find_workload(background).inputs
    kinds = [[(given.dtype, len(given.shape)) for given in job] for job in (inputs, plan.inputs)]
    same_kind = kinds[0] == kinds[1] or not any(given.shape for given in inputs)
    return Job(background, plan.input_shape if same_kind else inputs[0].shape, batch or BATCH)


def measured_job(background: str | Job | BackgroundJob, plan: Plan, batch: int | None = None) -> BackgroundJob:
    """Returns the background job of a measured run; ``batch`` is for a model given by name.

    Raises:
        CaptureError: an unknown model.
        InvalidValueError: a job with an end, checkpoints or a budget: the run starts and stops it on all ranks alike.
    """
    if isinstance(background, str | Job):
        return BackgroundJob(synthetic_job(background, plan, batch))
    if not isinstance(background, BackgroundJob):
        raise InvalidValueError(
            f"a measured run has one background job, the same beside every rank, got a "
            f"{type(background).__name__} (deeppool.train runs a queue of them)"
        )
    if background != BackgroundJob(background.job, batch=background.batch, label=background.label):
        raise InvalidValueError(
            "the background job of a measured run has no steps, checkpoints, memory or restarts of its own "
            "(deeppool.train respects them)"
        )
    return background


def save_background_job(job: BackgroundJob, folder: Path) -> dict[str, Any]:
    """Makes a job available to its processes: your own training is saved to ``folder``, private to the run.

    Returns:
        Fields of the ``setup`` command, except ``saved_job``: where the process finds that folder, if not in its own.
    """
    if isinstance(job.job, Job):
        return {"job": asdict(job.job)}
    save_job(job.job, folder)
    return {"batch": job.batch}


JobLists = Sequence[BackgroundJob] | Mapping[int, Sequence[BackgroundJob]]
"""Jobs for the next free rank, in order; or for each rank the jobs that it runs one after another."""
Background = str | Job | BackgroundJob | JobLists
"""Jobs; or a model, by name or as a job, trained on synthetic data beside every rank."""


def job_lists(background: Background, plan: Plan) -> JobLists:
    """Converts a background given in any form to jobs.

    Raises:
        CaptureError: an unknown model.
    """
    if isinstance(background, str | Job):
        job = synthetic_job(background, plan)
        return {rank: [BackgroundJob(job)] for rank in range(plan.gpus)}
    return background if isinstance(background, Mapping) else _listed(background)


class JobQueue:
    """Background jobs that wait for a free rank."""

    def __init__(self, jobs: JobLists, ranks: int) -> None:
        """Checks and queues the jobs.

        Raises:
            InvalidValueError: an unknown rank, an object that is not a job, or two jobs with one checkpoint folder.
        """
        shared = [] if isinstance(jobs, Mapping) else list(jobs)
        by_rank = {rank: _listed(queue) for rank, queue in jobs.items()} if isinstance(jobs, Mapping) else {}
        for rank in by_rank:
            if as_whole(rank) is None or not 0 <= rank < ranks:
                raise InvalidValueError(f"background jobs were given for rank {rank}; the ranks are 0 to {ranks - 1}")
        common = deque(shared)
        self._queues = {rank: deque(by_rank.get(rank, ())) if by_rank else common for rank in range(ranks)}
        self._check(self.waiting())

    def take(self, rank: int) -> BackgroundJob | None:
        """Removes and returns the next job of a free rank; None: none waits."""
        queue = self._queues[rank]
        return queue.popleft() if queue else None

    def waiting(self) -> list[BackgroundJob]:
        """Returns the jobs that wait."""
        queues = {id(queue): queue for queue in self._queues.values()}
        return [job for queue in queues.values() for job in queue]

    def _check(self, jobs: Sequence[BackgroundJob]) -> None:
        seen: set[Path] = set()
        for job in jobs:
            if not isinstance(job, BackgroundJob):
                raise InvalidValueError(
                    f"a background job must be a deeppool.BackgroundJob, got a {type(job).__name__} "
                    "(put a training into one: deeppool.BackgroundJob(job, batch=8))"
                )
            if job.checkpoints is not None:
                folder = Path(job.checkpoints).resolve()
                if folder in seen:
                    raise InvalidValueError(
                        f"two background jobs would write checkpoints into {folder} (give each a folder of its own)"
                    )
                seen.add(folder)


def _listed(jobs: Any) -> list[BackgroundJob]:
    # Arrays and tensors without dimensions say that they are iterable, too.
    return list(jobs) if isinstance(jobs, Iterable) and getattr(jobs, "ndim", None) != 0 else [jobs]

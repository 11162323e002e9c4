"""Background jobs, and the lines in which they wait for a rank's free place: one for all ranks, or one for each."""

import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any

from deeppool.errors import InvalidValueError
from deeppool.graph.models.workloads import find_workload
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.training.training_job import TrainingJob, save_job
from deeppool.units import parse_bytes

BATCH = 4
"""Samples of a background's step, unless it says otherwise: short steps leave sooner."""


@dataclass(frozen=True)
class BackgroundJob:
    """A training in the gaps that a foreground leaves: on one GPU or core, in a process of its own."""

    job: TrainingJob | Job
    """The user's own training; or a model on synthetic data, which has its own batch."""
    _: KW_ONLY
    batch: int = BATCH
    """Samples of a step."""
    steps: int | None = None
    """Updates that it shall have made in the end, those before a checkpoint included; None: until the foreground
    ends."""
    checkpoints: str | os.PathLike[str] | None = None
    """Folder to keep them in, of this job alone; it goes on from the latest one there. None: none."""
    checkpoint_every: int = 100
    """Steps between two checkpoints; one more is written when the job ends, or has to leave its place."""
    memory: float | str | None = None
    """Most that its processes may hold, in bytes or as ``2GB``: over it, it writes a checkpoint and leaves."""
    restarts: int = 0
    """How often to start it again after it crashed or hung."""

    def __post_init__(self) -> None:
        if isinstance(self.job, Job):
            object.__setattr__(self, "batch", self.job.batch)
        for name, value, least in (
            ("batch", self.batch, 1),
            ("steps", self.steps, 1),
            ("checkpoint_every", self.checkpoint_every, 1),
            ("restarts", self.restarts, 0),
        ):
            if value is not None and value < least:
                raise InvalidValueError(f"{name} of a background job must be at least {least}, got {value}")
        if self.budget is not None and self.budget <= 0:
            raise InvalidValueError(f"memory of a background job must be positive, got {self.memory}")

    @property
    def name(self) -> str:
        """Of its model."""
        return self.job.model if isinstance(self.job.model, str) else type(self.job.model).__name__

    @property
    def budget(self) -> float | None:
        """``memory`` in bytes."""
        return parse_bytes(self.memory) if isinstance(self.memory, str) else self.memory


def filler(background: str | Job, plan: Plan, batch: int | None = None) -> Job:
    """What trains in the gaps of a plan for its own sake: a model on synthetic data.

    Its samples have the foreground's shape where both models take the same kind, unless the caller says otherwise.

    Raises:
        CaptureError: an unknown model.
    """
    if isinstance(background, Job):
        find_workload(background.model)
        return background
    inputs = find_workload(background).inputs
    kinds = [[(given.dtype, len(given.shape)) for given in job] for job in (inputs, plan.inputs)]
    alike = kinds[0] == kinds[1] or not inputs[0].shape
    return Job(background, plan.input_shape if alike else inputs[0].shape, batch or BATCH)


def measured(background: str | Job | BackgroundJob, plan: Plan, batch: int | None = None) -> BackgroundJob:
    """What trains beside every rank of a run that measures; ``batch`` is of a model that is given by its name.

    Raises:
        CaptureError: an unknown model.
        InvalidValueError: more than a training: a run that measures stops and goes on as it needs, on all ranks alike.
    """
    if isinstance(background, str | Job):
        return BackgroundJob(filler(background, plan, batch))
    if not isinstance(background, BackgroundJob):
        raise InvalidValueError(
            f"a run that measures has one background job, the same beside every rank, got a "
            f"{type(background).__name__} (deeppool.train runs a queue of them)"
        )
    if background != BackgroundJob(background.job, batch=background.batch):
        raise InvalidValueError(
            "the background job of a run that measures has no steps, checkpoints, memory or restarts of its own "
            "(deeppool.train keeps to them)"
        )
    return background


def hand_over(job: BackgroundJob, folder: Path) -> dict[str, Any]:
    """What a process must know to train a job; the user's own objects are left in a folder, private, of the run.

    Returns:
        Fields of the ``setup`` command but for ``own``, where that folder lies for the process.
    """
    if isinstance(job.job, Job):
        return {"job": asdict(job.job)}
    save_job(job.job, folder)
    return {"batch": job.batch}


Lines = Sequence[BackgroundJob] | Mapping[int, Sequence[BackgroundJob]]
"""Jobs for whatever rank is free, first come, first served; or per rank the jobs that it shall run one by one."""
Background = str | Job | BackgroundJob | Lines
"""The same; or a model, by name or as a job, to train on synthetic data beside every rank."""


def job_lists(background: Background, plan: Plan) -> Lines:
    """What a user wants beside a plan, as jobs.

    Raises:
        CaptureError: an unknown model.
    """
    if isinstance(background, str | Job):
        job = filler(background, plan)
        return {rank: [BackgroundJob(job)] for rank in range(plan.gpus)}
    return [background] if isinstance(background, BackgroundJob) else background


class JobQueue:
    """Who is next, on each rank."""

    def __init__(self, jobs: Lines, ranks: int) -> None:
        """Checks the jobs; nothing is taken yet.

        Raises:
            InvalidValueError: a rank that there is not, something that is no job, or two jobs that would write into
                one folder.
        """
        shared = [] if isinstance(jobs, Mapping) else list(jobs)
        own = {rank: list(line) for rank, line in jobs.items()} if isinstance(jobs, Mapping) else {}
        for rank in own:
            if not 0 <= rank < ranks:
                raise InvalidValueError(f"background jobs were given for rank {rank}; the ranks are 0 to {ranks - 1}")
        line = deque(shared)
        self._lines = {rank: deque(own.get(rank, ())) if own else line for rank in range(ranks)}
        self._check(self.waiting())

    def take(self, rank: int) -> BackgroundJob | None:
        """The next job for a rank's free place."""
        line = self._lines[rank]
        return line.popleft() if line else None

    def waiting(self) -> list[BackgroundJob]:
        """Jobs that nobody has taken."""
        lines = {id(line): line for line in self._lines.values()}
        return [job for line in lines.values() for job in line]

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

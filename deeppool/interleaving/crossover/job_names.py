"""Names of jobs: short, different from each other, and fit for a folder."""

import re
from collections.abc import Collection

from deeppool.training.training_job import TrainingJob


def job_name(job: TrainingJob, taken: Collection[str]) -> str:
    """Returns the name of a job's model, with a number if others have it: ``resnet18``, ``resnet18-2``."""
    model = job.model if isinstance(job.model, str) else type(job.model).__name__
    base = re.sub(r"[^\w.-]+", "-", model.rpartition(":")[2]).strip(".-") or "job"
    names = (base if number == 1 else f"{base}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)

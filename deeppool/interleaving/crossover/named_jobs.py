"""The jobs that share ranks, by names that are short, different from each other, and fit for a folder."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from deeppool.base.number_checks import as_whole, whole_number
from deeppool.collectives.patterns import ALL_REDUCES, LIBRARY
from deeppool.errors import InvalidValueError
from deeppool.training.training_job import TrainingJob

PATTERNS = (LIBRARY, *(name for name in ALL_REDUCES if name != "hierarchical"))
"""Ways to sum gradients; a hierarchy needs to know the nodes, which jobs without a plan do not name."""


def job_name(job: TrainingJob, taken: Collection[str]) -> str:
    """Returns the name of a job's model, with a number if others have it: ``resnet18``, ``resnet18-2``."""
    base = re.sub(r"[^\w.-]+", "-", job.model_name.rpartition(":")[2]).strip(".-") or "job"
    names = (base if number == 1 else f"{base}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def named_jobs(
    jobs: Sequence[TrainingJob], global_batch: int | Sequence[int], ranks: int, all_reduce: str
) -> dict[str, tuple[TrainingJob, int]]:
    """Returns jobs and their global batches by name.

    Raises:
        InvalidValueError: there is no job, not one batch for each, or a setting out of range.
    """
    given: Any = global_batch  # a number of torch, too, looks like a list
    batches: list[int] = list(given) if as_whole(given) is None else [given] * len(jobs)
    if not jobs or len(batches) != len(jobs):
        raise InvalidValueError(f"{len(jobs)} jobs have {len(batches)} global batches (give one for each, or one)")
    if all_reduce not in PATTERNS:
        raise InvalidValueError(f"all_reduce must be one of {', '.join(PATTERNS)}, got '{all_reduce}'")
    found: dict[str, tuple[TrainingJob, int]] = {}
    for job, batch in zip(jobs, batches, strict=True):
        found[job_name(job, found)] = job, check_batch(batch, ranks)
    return found


def check_batch(batch: int, ranks: int) -> int:
    """Returns a global batch as Python's number; raises for one with fewer samples than ranks."""
    return whole_number("global_batch", batch, ranks, note=f"a sample for each of {ranks} ranks")

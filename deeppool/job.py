"""Jobs that a foreground and a background train, and the signature of progress callbacks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Progress = Callable[[str, float], None]
"""Callback for progress: receives the current activity and the fraction that is done (0 to 1)."""


@dataclass(frozen=True, slots=True)
class Job:
    """Training job: a model, its data and its optimizer (SGD on the synthetic task)."""

    model: str
    """Name of a workload, ``package.module:callable``, or a file that the launcher pickled for its own ranks."""
    input_shape: tuple[int, ...]
    batch: int
    """Global batch of a foreground, or per-process batch of a background."""
    learning_rate: float = 0.001
    momentum: float = 0.9
    seed: int = 0


def job_from(fields: Mapping[str, Any]) -> Job:
    """Creates a job from fields that were sent as JSON."""
    return Job(**{**fields, "input_shape": tuple(fields["input_shape"])})

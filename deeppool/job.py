"""Jobs: what a foreground and a background train, and how long work tells of itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Progress = Callable[[str, float], None]
"""Called with what a live run is doing, and the share that is done (0 to 1)."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training job: a model, its data and its optimizer (SGD on the synthetic task)."""

    model: str
    """A workload's name, ``package.module:callable``, or a file that the launcher pickled for its own ranks."""
    input_shape: tuple[int, ...]
    batch: int
    """Global batch of a foreground, per-process batch of a background."""
    learning_rate: float = 0.001
    momentum: float = 0.9
    seed: int = 0


def job_from(told: Mapping[str, Any]) -> Job:
    """A job whose fields have travelled as JSON."""
    return Job(**{**told, "input_shape": tuple(told["input_shape"])})

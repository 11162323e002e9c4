"""A workload trace: which jobs arrive at a cluster when, and what each of them wants."""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from deeppool.base import serialization
from deeppool.errors import DocumentError, InvalidValueError
from deeppool.planning.plan import Plan
from deeppool.profiling.shipped import find_profile
from deeppool.profiling.table import Profile
from deeppool.scheduling.placement import Role

Source = Profile | Plan
"""What is known of a job's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """A job of a trace.

    A foreground is planned for its GPUs and batch, by the strategy that is simulated. A background trains by itself on
    each of its GPUs, as the coordinator's do.
    """

    name: str
    role: Role
    source: str
    """A profile by its name or file, or, for a foreground, the file of a plan; its own GPUs, batch and limit hold."""
    arrival: float = 0.0
    """Seconds from the start of the trace."""
    iterations: int | None = None
    """To train, on each GPU of a background; None: a background that ends with the last job that has an end."""
    gpus: int | None = None
    """To plan a foreground for; that a background trains on, 1 unless given."""
    batch: int | None = None
    """Global batch of a foreground; per GPU of a background, the largest of its profile unless given."""
    amplification_limit: float | None = None
    """Per layer of a foreground; None: no limit."""

    def __post_init__(self) -> None:
        for name in ("iterations", "gpus", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValueError(f"{name} of job '{self.name}' must be at least 1, got {value}")
        if not 0 <= self.arrival < math.inf:
            raise InvalidValueError(f"arrival of job '{self.name}' must not be before 0 s, got {self.arrival:g} s")
        if self.role == "foreground" and self.iterations is None:
            raise InvalidValueError(f"foreground job '{self.name}' needs a number of iterations")


@dataclass(frozen=True, slots=True)
class WorkloadTrace:
    """Jobs that arrive at a cluster."""

    KIND: ClassVar[str] = "workload-trace"

    name: str
    method: str
    """Where it comes from: recorded when and where, or drawn from which distributions."""
    jobs: tuple[TraceJob, ...]

    def __post_init__(self) -> None:
        twice = next((name for name, count in Counter(job.name for job in self.jobs).items() if count > 1), None)
        if twice is not None:
            raise InvalidValueError(f"two jobs of trace '{self.name}' are called '{twice}' (give each its own name)")
        if all(job.iterations is None for job in self.jobs):
            raise InvalidValueError(f"trace '{self.name}' has no job that ends (give a job a number of iterations)")

    def __str__(self) -> str:
        roles = [job.role for job in self.jobs]
        return (
            f"{self.name}: {roles.count('foreground')} foreground and {roles.count('background')} background jobs, "
            f"the last arrives at {max(job.arrival for job in self.jobs):g} s; {self.method}"
        )


def load_sources(trace: WorkloadTrace, folder: str | Path = ".") -> dict[str, Source]:
    """The profiles and plans that a trace names.

    Args:
        trace: whose jobs' sources are looked up.
        folder: that file names are relative to, as of the trace's own file.

    Raises:
        DocumentError: a source is neither a file nor a shipped profile, or is of another kind.
    """
    return {name: _load(name, Path(folder)) for name in sorted({job.source for job in trace.jobs})}


def _load(name: str, folder: Path) -> Source:
    path = folder / name
    if not path.exists():
        return find_profile(name)
    document = serialization.read_object(path)
    match document.get("format"):
        case "deeppool/profile":
            return serialization.from_json(document, Profile, path)
        case "deeppool/plan":
            return serialization.from_json(document, Plan, path)
        case other:
            raise DocumentError(
                f"{path}: field 'format' is {other!r}, expected 'deeppool/profile' or 'deeppool/plan' "
                "(it is the source of a job)"
            )


def single_foreground_trace(
    foreground: str,
    gpus: int,
    global_batch: int,
    *,
    background: str | None = None,
    background_batch: int | None = None,
    iterations: int = 100,
    amplification_limit: float | None = None,
) -> WorkloadTrace:
    """One foreground on a whole cluster, and a background that never ends on each of its GPUs.

    What DeepPool's figures 9 and 10 measure.

    Args:
        foreground: source of its times, see :class:`TraceJob`.
        gpus: of the cluster.
        global_batch: of the foreground.
        background: source of the background's times; the foreground's unless given.
        background_batch: per GPU; the largest of its profile unless given.
        iterations: of the foreground.
        amplification_limit: of the foreground, per layer.
    """
    front = TraceJob(
        name="foreground",
        role="foreground",
        source=foreground,
        iterations=iterations,
        gpus=gpus,
        batch=global_batch,
        amplification_limit=amplification_limit,
    )
    behind = [
        TraceJob(
            name=f"background {number}", role="background", source=background or foreground, batch=background_batch
        )
        for number in range(gpus)
    ]
    return WorkloadTrace(
        f"{foreground} and {background or foreground}", "made by hand: all jobs arrive at once", (front, *behind)
    )

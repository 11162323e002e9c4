"""Workload traces: jobs with arrival times and resource requests."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os.path import exists
from pathlib import Path
from typing import ClassVar, get_args

from deeppool.base import serialization
from deeppool.base.arguments import check_fields
from deeppool.base.number_checks import real_number, whole_number
from deeppool.cluster.cluster import MAXIMUM_GPUS, Cluster
from deeppool.errors import DocumentError, InvalidValueError
from deeppool.planning.plan import Plan
from deeppool.profiling.default_cluster import cluster_of
from deeppool.profiling.shipped import find_profile
from deeppool.profiling.table import Profile
from deeppool.scheduling.placement import Role

ROLES = get_args(Role)
Source = Profile | Plan
"""Source of a job's layer times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """A job of a trace.

    A foreground is planned for its GPUs and batch under the simulated strategy. A background trains independently on
    each of its GPUs, as under the coordinator.
    """

    name: str
    role: Role
    source: str
    """Name or file of a profile; for a foreground also the file of a plan, whose GPUs, batch and limit then apply."""
    arrival: float = 0.0
    """Seconds from the start of the trace."""
    iterations: int | None = None
    """Iterations to train, per GPU of a background; None: a background that runs until the last finite job finishes."""
    gpus: int | None = None
    """GPUs to plan a foreground for, or that a background trains on (default 1)."""
    batch: int | None = None
    """Global batch of a foreground; per-GPU batch of a background (default: the largest of its profile that fits)."""
    amplification_limit: float | None = None
    """Amplification limit of each layer of a foreground; None: no limit."""

    def __post_init__(self) -> None:
        for name in ("iterations", "gpus", "batch"):
            value, most = getattr(self, name), MAXIMUM_GPUS if name == "gpus" else None
            if value is not None:
                object.__setattr__(self, name, whole_number(f"{name} of job '{self.name}'", value, most=most))
        # One of 32 bits would make every time of a simulation so.
        object.__setattr__(self, "arrival", real_number(f"arrival of job '{self.name}'", self.arrival))
        if self.amplification_limit is not None:
            limit = real_number(f"amplification_limit of job '{self.name}'", self.amplification_limit)
            object.__setattr__(self, "amplification_limit", limit)
        if str(self.role) not in ROLES:
            raise InvalidValueError(f"role of job '{self.name}' must be foreground or background, got {self.role!r}")
        check_fields(self)
        if not 0 <= self.arrival < math.inf:
            raise InvalidValueError(f"arrival of job '{self.name}' must not be before 0 s, got {self.arrival:g} s")
        if self.role == "foreground" and self.iterations is None:
            raise InvalidValueError(f"foreground job '{self.name}' needs a number of iterations")


@dataclass(frozen=True, slots=True)
class WorkloadTrace:
    """Jobs of a cluster in the order given, with their arrival times."""

    KIND: ClassVar[str] = "workload-trace"

    name: str
    method: str
    """Origin: when and where it was recorded, or the distributions it was drawn from."""
    jobs: tuple[TraceJob, ...]

    def __post_init__(self) -> None:
        check_fields(self)
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
    """Loads the profiles and plans that a trace names.

    Args:
        trace: the trace.
        folder: base of relative file names, usually the folder of the trace's own file.

    Raises:
        DocumentError: a source is neither a file nor a shipped profile, or is of another kind.
    """
    return {name: _load(name, Path(folder)) for name in sorted({job.source for job in trace.jobs})}


def _load(name: str, folder: Path) -> Source:
    path = folder / name
    if not exists(path):
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


def cluster_of_jobs(trace: WorkloadTrace, sources: Mapping[str, Source], cluster: Cluster | int) -> Cluster:
    """Returns the cluster itself, or of a number of GPUs that of the trace's plans, or of its profiles' device.

    Raises:
        InvalidValueError: jobs are of different devices, or one names a source that is not among them.
    """
    for job in trace.jobs:
        if job.source not in sources:
            known = ", ".join(sources) or "none"
            raise InvalidValueError(f"job '{job.name}' names the source '{job.source}', known are: {known}")
    jobs = {_device(sources[job.source]): job.name for job in trace.jobs}
    if len(jobs) > 1:
        found = ", ".join(f"'{name}' of {device}" for device, name in jobs.items())
        raise InvalidValueError(f"jobs must be of one kind of GPU, got {found} (profile all on it)")
    if isinstance(cluster, Cluster):
        return cluster
    used = [sources[job.source] for job in trace.jobs]
    plans = [source.cluster for source in used if isinstance(source, Plan)]
    profiles = [source for source in used if isinstance(source, Profile)]
    return replace(plans[0], gpus=cluster) if plans else cluster_of(profiles[0], cluster)


def _device(source: Source) -> str:
    return f"{source.device_name} ({source.device})"


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
    """Makes a trace of one foreground on a whole cluster and an endless background on each GPU.

    DeepPool's figures 9 and 10 measure this workload.

    Args:
        foreground: source of its times, see :class:`TraceJob`.
        gpus: number of GPUs of the cluster.
        global_batch: global batch of the foreground.
        background: source of the background's times; the foreground's unless given.
        background_batch: per GPU; the largest of its profile unless given.
        iterations: iterations of the foreground.
        amplification_limit: limit of each layer of the foreground.
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

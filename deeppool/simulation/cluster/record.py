"""Records of a simulated cluster: per job, per GPU and over time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal

from deeppool.base.sharing import Sharing
from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.scheduling.placement import Role
from deeppool.simulation.cluster.job_costs import ClusterStrategy
from deeppool.simulation.plan.conditions import Conditions
from deeppool.units import format_count, format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Outcome of one job of the trace."""

    name: str
    role: Role
    gpu_count: int
    gpus: tuple[int, ...]
    """GPUs it trained on last; empty: it never started."""
    arrival: float
    """Seconds from the start of the trace, as are the next two."""
    start: float | None
    """First start; None: it never started."""
    finish: float | None
    """Finish in seconds from the start of the trace; None: it did not finish."""
    iterations: float
    """Trained iterations, fractions included; for a background the mean over its GPUs."""
    samples: float
    """Trained samples."""
    alone_time: float | None
    """Seconds that all its iterations take without other jobs; None: endless, or never started."""
    suspensions: int
    """Number of times a background was evicted by a foreground; its progress is kept."""
    single_gpu_iteration_time: float | None
    """Seconds for a foreground's global batch on one GPU."""

    @property
    def completion_time(self) -> float | None:
        """Seconds from arrival to finish."""
        return None if self.finish is None else self.finish - self.arrival

    @property
    def waiting(self) -> float | None:
        """Seconds from arrival to the first start."""
        return None if self.start is None else self.start - self.arrival

    @property
    def slowdown(self) -> float | None:
        """Completion time relative to the time alone; 1 means no delay by other jobs."""
        return self.completion_time / self.alone_time if self.completion_time is not None and self.alone_time else None

    @property
    def iteration_time(self) -> float | None:
        """Mean seconds per iteration of a finished foreground."""
        ended = self.role == "foreground" and self.start is not None and self.finish is not None
        return (self.finish - self.start) / self.iterations if ended else None  # type: ignore[operator]

    @property
    def speedup(self) -> float | None:
        """Speed of a finished foreground relative to one GPU with its global batch."""
        mean = self.iteration_time
        return self.single_gpu_iteration_time / mean if mean and self.single_gpu_iteration_time else None


@dataclass(frozen=True, slots=True)
class Interval:
    """Interval of one GPU with constant occupancy; its three fractions of time sum to 1."""

    start: float
    end: float
    foreground: str | None
    """Name of the foreground job; None: none."""
    background: str | None
    held: float
    """Fraction held by the foreground, with or without a background running concurrently."""
    harvested: float
    """Fraction used by the background alone."""
    idle: float


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs with identical intervals."""

    gpus: tuple[int, ...]
    stints: tuple[Interval, ...]
    """Contiguous intervals, from the start of the trace to the end of the simulation."""


@dataclass(frozen=True, slots=True)
class ClusterStep:
    """State of the cluster between two events."""

    start: float
    end: float
    foreground_throughput: float
    """Samples per second over all jobs."""
    background_throughput: float
    held: float
    """Mean number of GPUs, as are the next two."""
    harvested: float
    idle: float
    queued: int
    """Number of waiting jobs."""


@dataclass(frozen=True, slots=True)
class GpuSeconds:
    """GPU-seconds of the whole cluster until the makespan."""

    foreground: float
    background: float
    """GPU-seconds of backgrounds while no foreground held the GPU."""
    idle: float

    @property
    def total(self) -> float:
        """GPUs x makespan."""
        return self.foreground + self.background + self.idle


@dataclass(frozen=True, slots=True)
class ClusterSimulation:
    """A simulated workload on a cluster under one strategy."""

    KIND: ClassVar[str] = "cluster-simulation"

    trace: str
    cluster: Cluster
    strategy: ClusterStrategy
    foreground_gpus: int | None
    """Size of the foreground part of a partition."""
    sharing: Sharing | None
    """Mechanisms by which backgrounds share the GPUs; None where no interference was modelled."""
    interference: str
    """Device and date of the measurement, or a statement that none was modelled."""
    conditions: Conditions | None
    provenance: Literal["measured", "estimated"]
    """Provenance of the layer times; estimated if any source is."""
    makespan: float
    """Seconds from the start of the trace to the last finish, or to ``until``."""
    gpu_seconds: GpuSeconds
    jobs: tuple[JobOutcome, ...]
    """Outcomes of the jobs, in the trace's order."""
    steps: tuple[ClusterStep, ...]
    groups: tuple[GpuGroup, ...]
    caveats: tuple[str, ...] = ()
    """Uncertainties of the layer times, a sentence each."""

    def __post_init__(self) -> None:
        known = {job.name for job in self.jobs}
        stints = [stint for group in self.groups for stint in group.stints]
        held = {name for stint in stints for name in (stint.foreground, stint.background)}
        if not self.steps or self.makespan <= 0 or any(stint.end <= stint.start for stint in stints):
            raise InvalidValueError(
                f"a simulated cluster takes some time in steps and intervals that do, got {self.makespan:g} s in "
                f"{len(self.steps)} steps"
            )
        if strangers := held - known - {None}:
            raise InvalidValueError(f"GPUs are held by {sorted(map(str, strangers))}, which are no jobs of the trace")

    def _samples(self, role: Role) -> float:
        return sum(job.samples for job in self.jobs if job.role == role)

    @property
    def foreground_throughput(self) -> float:
        """Samples per second over the makespan."""
        return self._samples("foreground") / self.makespan

    @property
    def background_throughput(self) -> float:
        """Samples per second over the makespan."""
        return self._samples("background") / self.makespan

    @property
    def throughput(self) -> float:
        """Samples per second of the cluster: foreground plus background."""
        return self.foreground_throughput + self.background_throughput

    @property
    def utilisation(self) -> float:
        """Fraction of the GPU-seconds in which a job held the GPU."""
        return 1 - self.gpu_seconds.idle / self.gpu_seconds.total

    def finished(self, role: Role) -> Iterator[JobOutcome]:
        """Returns finished jobs of a role."""
        return (job for job in self.jobs if job.role == role and job.finish is not None)

    def mean_completion_time(self, role: Role = "foreground") -> float | None:
        """Returns the mean seconds from arrival to finish; None: no job of the role finished."""
        times = [job.completion_time for job in self.finished(role) if job.completion_time is not None]
        return fmean(times) if times else None

    @property
    def mean_speedup(self) -> float:
        """Geometric mean of the foregrounds' speedups over one GPU; NaN if none finished."""
        speedups = [job.speedup for job in self.finished("foreground") if job.speedup]
        return math.exp(fmean(map(math.log, speedups))) if speedups else math.nan

    def __str__(self) -> str:
        part = (
            f" ({format_count(self.foreground_gpus, 'GPU')} for foregrounds)"
            if self.foreground_gpus is not None
            else ""
        )
        done = sum(job.finish is not None for job in self.jobs)
        time = self.mean_completion_time()
        mean = "" if time is None else f", foregrounds complete in {format_seconds(time)} on average"
        return (
            f"{self.trace}, {self.strategy}{part} on {format_count(self.cluster.gpus, 'GPU')}: {done} of "
            f"{len(self.jobs)} jobs ended, makespan {format_seconds(self.makespan)}{mean}; "
            f"{format_rate(self.foreground_throughput, 4)} + "
            f"{format_rate(self.background_throughput, 4)} samples/s, "
            f"{100 * self.utilisation:.0f} % of GPU time in use; {self.interference}"
            + "".join(f"; caution: {sentence}" for sentence in self.caveats)
        )

"""What came of a workload on a simulated cluster: per job, per GPU, over time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal

from deeppool.base.sharing import Sharing
from deeppool.cluster.cluster import Cluster
from deeppool.scheduling.placement import Role
from deeppool.simulation.cluster.job_costs import ClusterStrategy
from deeppool.simulation.plan.conditions import Conditions
from deeppool.units import format_seconds


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job of the trace."""

    name: str
    role: Role
    gpu_count: int
    gpus: tuple[int, ...]
    """Where it trained last; empty: it never started."""
    arrival: float
    """Seconds from the start of the trace, as are the next two."""
    start: float | None
    """First; None: it never started."""
    finish: float | None
    """None: it never ended by itself."""
    iterations: float
    """That it trained, those under way counted in part; on a background the mean over its GPUs."""
    samples: float
    """That it trained."""
    alone_time: float | None
    """Seconds that all its iterations take without any other job; None: it has no end, or never started."""
    suspensions: int
    """Times that a background had to leave its GPUs to a foreground, with what it had trained."""
    single_gpu_iteration_time: float | None
    """Of a foreground's global batch."""

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
        """Completion time over the time alone: 1 is as if it had the cluster to itself."""
        return self.completion_time / self.alone_time if self.completion_time is not None and self.alone_time else None

    @property
    def iteration_time(self) -> float | None:
        """Mean seconds, of a foreground that has ended."""
        ended = self.role == "foreground" and self.start is not None and self.finish is not None
        return (self.finish - self.start) / self.iterations if ended else None  # type: ignore[operator]

    @property
    def speedup(self) -> float | None:
        """Of a foreground that has ended, over one GPU with its global batch."""
        mean = self.iteration_time
        return self.single_gpu_iteration_time / mean if mean and self.single_gpu_iteration_time else None


@dataclass(frozen=True, slots=True)
class Interval:
    """What a GPU does for a while; the three shares of its time sum to 1."""

    start: float
    end: float
    foreground: str | None
    """Name of the job."""
    background: str | None
    held: float
    """By the foreground, whether or not a background works beside it."""
    harvested: float
    """By the background alone."""
    idle: float


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs that did the same at all times."""

    gpus: tuple[int, ...]
    stints: tuple[Interval, ...]
    """Without a break from the start of the trace to the end of the simulation."""


@dataclass(frozen=True, slots=True)
class ClusterStep:
    """The cluster between two events."""

    start: float
    end: float
    foreground_throughput: float
    """Samples a second, of all jobs together."""
    background_throughput: float
    held: float
    """GPUs, on average."""
    harvested: float
    idle: float
    queued: int
    """Jobs that wait."""


@dataclass(frozen=True, slots=True)
class GpuSeconds:
    """Of the whole cluster until the makespan."""

    foreground: float
    background: float
    """While no foreground held the GPU."""
    idle: float

    @property
    def total(self) -> float:
        """GPUs x makespan."""
        return self.foreground + self.background + self.idle


@dataclass(frozen=True, slots=True)
class ClusterSimulation:
    """A workload on a cluster, by one strategy."""

    KIND: ClassVar[str] = "cluster-simulation"

    trace: str
    cluster: Cluster
    strategy: ClusterStrategy
    foreground_gpus: int | None
    """Of a partition."""
    sharing: Sharing | None
    """How backgrounds share the GPUs, where interference was modelled."""
    interference: str
    """Where it was measured, and when; or that none was modelled."""
    conditions: Conditions | None
    provenance: Literal["measured", "estimated"]
    """Of the layer times; estimated where one profile is."""
    makespan: float
    """Seconds from the start of the trace to the last finish, or to the given end."""
    gpu_seconds: GpuSeconds
    jobs: tuple[JobOutcome, ...]
    """In the trace's order."""
    steps: tuple[ClusterStep, ...]
    groups: tuple[GpuGroup, ...]

    def _samples(self, role: Role) -> float:
        return sum(job.samples for job in self.jobs if job.role == role)

    @property
    def foreground_throughput(self) -> float:
        """Samples a second, over the makespan."""
        return self._samples("foreground") / self.makespan

    @property
    def background_throughput(self) -> float:
        """Samples a second, over the makespan."""
        return self._samples("background") / self.makespan

    @property
    def throughput(self) -> float:
        """Of the cluster: foreground plus background."""
        return self.foreground_throughput + self.background_throughput

    @property
    def utilisation(self) -> float:
        """Part of the GPU-seconds in which a job held the GPU."""
        return 1 - self.gpu_seconds.idle / self.gpu_seconds.total

    def finished(self, role: Role) -> Iterator[JobOutcome]:
        """Jobs that came to their end."""
        return (job for job in self.jobs if job.role == role and job.finish is not None)

    def mean_completion_time(self, role: Role = "foreground") -> float | None:
        """Seconds; None: no such job came to its end."""
        times = [job.completion_time for job in self.finished(role) if job.completion_time is not None]
        return fmean(times) if times else None

    @property
    def mean_speedup(self) -> float:
        """Geometric, of the foregrounds over one GPU; not a number where none has ended."""
        speedups = [job.speedup for job in self.finished("foreground") if job.speedup]
        return math.exp(fmean(map(math.log, speedups))) if speedups else math.nan

    def __str__(self) -> str:
        part = f" ({self.foreground_gpus} GPUs for foregrounds)" if self.foreground_gpus is not None else ""
        done = sum(job.finish is not None for job in self.jobs)
        time = self.mean_completion_time()
        mean = "" if time is None else f", foregrounds complete in {format_seconds(time)} on average"
        return (
            f"{self.trace}, {self.strategy}{part} on {self.cluster.gpus} GPUs: {done} of {len(self.jobs)} jobs ended, "
            f"makespan {format_seconds(self.makespan)}{mean}; {self.foreground_throughput:.4g} + "
            f"{self.background_throughput:.4g} samples/s, {100 * self.utilisation:.0f} % of GPU time in use; "
            f"{self.interference}"
        )

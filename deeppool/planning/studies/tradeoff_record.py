"""SharedCluster: foreground speed-up against cluster throughput where a background job uses the idle time.

The axes are those of DeepPool's figure 10. A plan of iteration time T that holds W GPU-seconds on k of a
cluster's N GPUs leaves k T - W idle GPU-seconds an iteration there, and (N - k) T on the GPUs outside it. A
background job that takes s seconds per sample on one GPU, and harvests the fraction h of idle time between
layers, then trains

    ((N - k) + h (k - W / T)) / s  samples per second.

Idle time counts only on GPUs that have room for the background beside the foreground. The foreground trains B / T
samples per second (global batch B), unhindered: the model has no interference, which a run measures, and no background
that runs on a GPU while the foreground computes there (DeepPool's GPU multiplexing, section 5), which the paper's own
figure contains.

Candidates are the efficient plans on every k: those that no other plan on k GPUs beats in iteration time and
GPU-seconds. The points are the candidates that none of the others beats in speed-up and background throughput. They
match every static partition of k GPUs whose foreground is a plan, since the frontier on k has a plan that is as fast
and the GPUs outside are the same. They may not match one of DDP, which may have other buckets, or accumulate gradients
where no plan fits; nor any where interference costs them more.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from deeppool.cluster.cluster import Cluster
from deeppool.costs.amplification import TOLERANCE
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.search.optimality import certificate, optimality_factor
from deeppool.units import format_bytes, format_count, format_rate, format_seconds

Strategy = Literal["burst parallel", "data parallel"]


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One way to share the cluster, with the predicted speed-up and throughputs."""

    strategy: Strategy
    """Strategy of the foreground."""
    gpus: int
    """GPUs of the foreground's plan. The others train the background."""
    collocated: bool
    """Whether the background also uses the idle time of the foreground's GPUs; else the cluster is partitioned."""
    iteration_time: float
    """Seconds of an iteration of the foreground, to which the next three fields belong too."""
    gpu_seconds: float
    amplification: float
    """Foreground GPU-seconds / single-GPU iteration time."""
    speedup: float
    """Speed-up of the foreground over one GPU at the same global batch."""
    foreground_throughput: float
    """Samples per second, like the next two fields."""
    background_throughput: float
    throughput: float
    """Throughput of the cluster, foreground plus background."""

    def __post_init__(self) -> None:
        if not min(self.iteration_time, self.speedup, self.throughput) > 0:
            raise InvalidValueError(
                f"iteration_time, speedup and throughput must be positive, got {self.iteration_time:g}, "
                f"{self.speedup:g} and {self.throughput:g}"
            )

    @property
    def amplification_limit(self) -> float:
        """The limit with which ``plan(…, limit_scope="iteration")`` on ``gpus`` GPUs finds this point; at least 1."""
        return max(1.0, self.amplification)

    def __str__(self) -> str:
        where = f"{self.gpus} GPU{'s' * (self.gpus > 1)}"
        how = f"{self.strategy} on {where}, {'background in the idle time' if self.collocated else 'to itself'}"
        return (
            f"{how}: {self.speedup:.2f}x one GPU ({format_seconds(self.iteration_time)} an iteration), "
            f"{format_rate(self.throughput, 4)} samples/s = {format_rate(self.foreground_throughput, 4)} foreground + "
            f"{format_rate(self.background_throughput, 4)} background"
        )


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """A static partition compared with collocation, as in DeepPool's section 7.1."""

    partition: OperatingPoint
    fastest: OperatingPoint | None
    """The fastest collocated plan with at least the partition's cluster throughput; None: no plan has as much."""
    highest_throughput: OperatingPoint | None
    """The collocated plan of highest cluster throughput that is at least as fast as the partition; None: none is."""

    @property
    def speedup_gain(self) -> float | None:
        """Relative gain of the foreground at the partition's throughput or more: 0.38 is 38 %."""
        return None if self.fastest is None else self.fastest.speedup / self.partition.speedup - 1

    @property
    def throughput_gain(self) -> float | None:
        """Relative gain of the cluster at the partition's speed-up or more: 0.25 is 25 %."""
        most = self.highest_throughput
        return None if most is None else most.throughput / self.partition.throughput - 1


@dataclass(frozen=True, slots=True)
class SharingAnswer:
    """The best point under a condition."""

    KIND: ClassVar[str] = "sharing-answer"

    point: OperatingPoint
    optimality: str
    """``exact``, or ``bound x``: no efficient plan under the condition is more than x times better; ``heuristic``: of
    the plans that are known to fit, or were simulated with interference."""

    def __str__(self) -> str:
        return f"{self.point}; {self.optimality}"


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """All efficient ways to run a foreground with a background job in its idle time, and static partitions."""

    KIND: ClassVar[str] = "shared-cluster"

    model: str
    background_model: str
    cluster: Cluster
    gpus: int
    global_batch: int
    background_batch: int
    background_sample_time: float
    """Seconds of one GPU per sample."""
    harvest_of_idle: float
    """Fraction of the idle time between the foreground's layers that the background uses; 1: no interference."""
    device_name: str
    provenance: Literal["measured", "estimated"]
    """Source of the profiles: estimated if one of the two is."""
    extrapolated_gpu_counts: tuple[int, ...]
    """GPU counts whose per-GPU batch lies above the profile's largest; with 1 among them, so is every speed-up."""
    single_gpu_iteration_time: float
    points: tuple[OperatingPoint, ...]
    """Burst parallel with collocation, fastest first; each slower one has more background throughput."""
    data_parallel_partitions: tuple[OperatingPoint, ...]
    """Partitions by GPU count, where they fit into memory, in micro-steps if need be. The last one is on all GPUs;
    there collocation adds nothing, as no GPU is ever idle."""
    burst_parallel_partitions: tuple[OperatingPoint, ...]
    """The fastest plan on each GPU count."""
    optimality: str
    """``exact``, or ``bound x``: an efficient plan may be x times faster than the point with as much background;
    ``heuristic`` where some plans do not fit into memory, or were simulated with interference: others might be
    better."""
    search_time: float
    interference: str = ""
    """Device and date of the interference by which the points were simulated; empty: none is modelled."""
    background_memory: int | None = None
    """Bytes that the background needs on each GPU; None: unknown, as in files of earlier versions."""

    def __post_init__(self) -> None:
        ways = len(self.points), len(self.data_parallel_partitions), len(self.burst_parallel_partitions)
        if self.gpus < 1 or self.background_sample_time <= 0 or not min(ways):
            raise InvalidValueError(
                f"a shared cluster has GPUs, a background and ways to share it, got {format_count(self.gpus, 'GPU')}, "
                f"{self.background_sample_time:g} s a sample and {ways} ways (points and both kinds of partitions)"
            )

    @property
    def data_parallel(self) -> OperatingPoint:
        """The data-parallel partition of greatest speed-up."""
        return min(self.data_parallel_partitions, key=lambda point: point.iteration_time)

    @property
    def background_alone_throughput(self) -> float:
        """Samples per second of the background by itself on all GPUs."""
        return self.gpus / self.background_sample_time

    @property
    def modelled(self) -> str:
        """What the points assume of idle time and interference, for captions."""
        if self.interference:
            return f"background on every GPU, interference as on {self.interference}"
        return f"{100 * self.harvest_of_idle:g} % of idle time harvested, no interference modelled"

    @property
    def crowded(self) -> int:
        """Number of points with idle GPUs that have no room for the background, by what it trains without one."""
        if self.interference:
            return 0
        gpus = ((x.gpus - x.gpu_seconds / x.iteration_time, x) for x in self.points)
        free = ((self.gpus - x.gpus + self.harvest_of_idle * idle, x) for idle, x in gpus)
        return sum(
            x.background_throughput * self.background_sample_time < most - self.gpus * TOLERANCE for most, x in free
        )

    def efficient(self) -> tuple[OperatingPoint, ...]:
        """Returns the points that none beats in both speed-up and cluster throughput; fastest first.

        Fewer than ``points`` where the foreground's samples count for more than the background's that they replace.
        """
        found: list[OperatingPoint] = []
        for point in self.points:
            if not found or point.throughput > found[-1].throughput:
                found.append(point)
        return tuple(found)

    def fastest(self, background_throughput: float) -> SharingAnswer:
        """Returns the point of greatest speed-up with at least a given background throughput, samples per second.

        Raises:
            InvalidValueError: a negative throughput.
            PlanError: no point leaves as much.
        """
        if not background_throughput >= 0:
            raise InvalidValueError(
                f"background_throughput must be at least 0, got {background_throughput:g}: it is samples per second "
                "over all GPUs that the background shall be left with"
            )
        enough = background_throughput * (1 - TOLERANCE)
        point = next((point for point in self.points if point.background_throughput >= enough), None)
        if point is None:
            most = self.points[-1]
            raise PlanError(
                f"no plan leaves {background_throughput:g} samples/s to {self.background_model}: beside {self.model} "
                f"on {format_count(most.gpus, 'GPU')} it trains {format_rate(most.background_throughput, 4)}, with the "
                "whole cluster to itself "
                f"{format_rate(self.background_alone_throughput, 4)} (ask for less, or for more GPUs)"
            )
        return SharingAnswer(point, self.optimality)

    def highest_throughput(self, speedup: float) -> SharingAnswer:
        """Returns the point of highest cluster throughput with at least a given speed-up over one GPU.

        Raises:
            InvalidValueError: a speed-up that is not positive.
            PlanError: no point is as fast.
        """
        if not speedup > 0:
            raise InvalidValueError(
                f"speedup must be positive, got {speedup:g}: it is how many times as fast as on one GPU the foreground "
                "shall be, for example 4"
            )
        point = self._highest_throughput(speedup)
        if point is None:
            fastest = self.points[0]
            raise PlanError(
                f"no plan makes {self.model} {speedup:g}x as fast as one GPU: the fastest reaches "
                f"{fastest.speedup:.4g}x on {format_count(fastest.gpus, 'GPU')} (ask for less, or for more GPUs)"
            )
        if self.optimality == "heuristic":
            return SharingAnswer(point, self.optimality)
        # An efficient plan may be faster by that factor than the point with its background throughput.
        factor = optimality_factor(self.optimality)
        slower = self._highest_throughput(speedup / factor) or point
        return SharingAnswer(point, certificate(factor * slower.throughput / point.throughput))

    def comparisons(self) -> tuple[PartitionComparison, ...]:
        """Returns each data-parallel partition with the best collocated plans."""
        return tuple(map(self._compare, self.data_parallel_partitions))

    @property
    def speedup_gains(self) -> tuple[float, ...]:
        """Gain in speed over each data-parallel partition that a plan matches in throughput."""
        return tuple(each.speedup_gain for each in self.comparisons() if each.speedup_gain is not None)

    @property
    def throughput_gains(self) -> tuple[float, ...]:
        """Gain in throughput over each data-parallel partition that a plan matches in speed."""
        return tuple(each.throughput_gain for each in self.comparisons() if each.throughput_gain is not None)

    def _compare(self, partition: OperatingPoint) -> PartitionComparison:
        enough = partition.throughput * (1 - TOLERANCE)
        fastest = next((point for point in self.points if point.throughput >= enough), None)
        return PartitionComparison(partition, fastest, self._highest_throughput(partition.speedup))

    def _highest_throughput(self, speedup: float) -> OperatingPoint | None:
        fast = [point for point in self.points if point.speedup >= speedup * (1 - TOLERANCE)]
        return max(fast, key=lambda point: point.throughput, default=None)

    def __str__(self) -> str:
        first, last = self.points[0], self.points[-1]
        free = f"in {100 * self.harvest_of_idle:g} % of its idle time (no interference modelled)"
        alone = self.data_parallel
        beside = f"on every GPU, interference as on {self.interference}" if self.interference else free
        crowded = ""
        if self.crowded:
            needed = format_bytes(self.background_memory or 0)
            crowded = f"; at {self.crowded} of these points idle GPUs have no room for the {needed} of the background"
        return (
            f"{self.model}, batch {self.global_batch} on {format_count(self.gpus, 'GPU')} ({self.cluster.name}), with "
            f"{self.background_model}, batch {self.background_batch}, {beside}: "
            f"{format_count(len(self.points), 'operating point')}, from {first.speedup:.2f}x one GPU and "
            f"{format_rate(first.throughput, 4)} samples/s in all to {last.speedup:.2f}x and "
            f"{format_rate(last.throughput, 4)}; data parallel on {format_count(alone.gpus, 'GPU')} "
            f"{alone.speedup:.2f}x and "
            f"{format_rate(alone.throughput, 4)}; {self.optimality}{crowded}"
        )

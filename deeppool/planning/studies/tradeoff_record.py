"""A foreground and a background job on one cluster: foreground speed-up against cluster throughput.

The axes are those of DeepPool's figure 10. A plan of iteration time T that holds W GPU-seconds on k of a
cluster's N GPUs leaves k T - W idle GPU-seconds an iteration there, and (N - k) T on the GPUs outside it. A
background job that takes s seconds per sample on one GPU, and harvests the share h of idle time between
layers, then trains

    ((N - k) + h (k - W / T)) / s  =  (N - V / T) / s  samples per second,  with  V = h W + (1 - h) k T,

the GPU-seconds that an iteration takes from the background. The foreground trains B / T samples per second
(global batch B), unhindered: nothing here models interference, which a run measures, nor a background that
runs on a GPU while the foreground computes there (DeepPool's GPU multiplexing, section 5), which the paper's
own figure contains.

Where the efficient plans are: on the frontier of T against V. A plan (T, V) off it has one there with T' <= T
and V' <= V. That one, with a pause of T - T' after each iteration in which the background has every GPU, is
exactly as fast and trains (N - V' / T) / s >= (N - V / T) / s. For each k, V grows with T and with W, so what
is efficient in (T, V) is so in (T, W), and ``frontier`` on k GPUs holds it; the union over k is searched. On
the frontier of (T, V) nothing is beaten, since a faster plan there has more V, so more V / T, so less
background.

Without the pause this would be false: a plan that holds more GPU-seconds but takes still more time leaves more
GPUs idle *per second*, as one GPU does where two are more than twice as fast. So the points, which do not
pause, are those of the frontiers on *every* k that none of the others beats in speed-up and background
throughput. They contain the frontier of (T, V), they leave no static partition of k GPUs unmatched (the
frontier on k has a plan that is as fast, and the GPUs outside are the same), and the one on a single GPU
leaves as much as any plan can that never pauses. What a pause, or a plan found on none of these frontiers,
could add to an answer is bounded in the answer's ``optimality``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from deeppool.cluster.cluster import Cluster
from deeppool.costs.amplification import TOLERANCE
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.search.search import certificate
from deeppool.units import format_seconds

Strategy = Literal["burst parallel", "data parallel"]


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One way to share the cluster."""

    strategy: Strategy
    """Of the foreground."""
    gpus: int
    """That the foreground's plan is made for: ``plan(…, cluster of so many)``. The others train the background."""
    collocated: bool
    """The background also has the idle time of the foreground's GPUs; else the cluster is partitioned."""
    iteration_time: float
    """Of the foreground, as are the next three."""
    gpu_seconds: float
    amplification: float
    """gpu_seconds / single-GPU iteration time."""
    speedup: float
    """Over one GPU at the same global batch."""
    foreground_throughput: float
    """Samples per second, as are the next two."""
    background_throughput: float
    throughput: float
    """Of the cluster: foreground plus background."""

    @property
    def amplification_limit(self) -> float:
        """For ``plan(…, limit_scope="iteration")`` on ``gpus`` GPUs, which then finds this point; at least 1."""
        return max(1.0, self.amplification)

    def __str__(self) -> str:
        where = f"{self.gpus} GPU{'s' * (self.gpus > 1)}"
        how = f"{self.strategy} on {where}, {'background in the idle time' if self.collocated else 'to itself'}"
        return (
            f"{how}: {self.speedup:.2f}x one GPU ({format_seconds(self.iteration_time)} an iteration), "
            f"{self.throughput:.4g} samples/s = {self.foreground_throughput:.4g} foreground + "
            f"{self.background_throughput:.4g} background"
        )


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """A static partition beside collocation, as DeepPool's section 7.1 compares them."""

    partition: OperatingPoint
    faster: OperatingPoint
    """The fastest collocated plan with at least its cluster throughput."""
    fuller: OperatingPoint
    """The collocated plan of highest cluster throughput that is at least as fast."""

    @property
    def speedup_gain(self) -> float:
        """Of the foreground at the partition's throughput or more: 0.38 is 38 %."""
        return self.faster.speedup / self.partition.speedup - 1

    @property
    def throughput_gain(self) -> float:
        """Of the cluster at the partition's speed-up or more: 0.25 is 25 %."""
        return self.fuller.throughput / self.partition.throughput - 1


@dataclass(frozen=True, slots=True)
class SharingAnswer:
    """The best point under a condition."""

    KIND: ClassVar[str] = "sharing-answer"

    point: OperatingPoint
    optimality: str
    """``exact``, or ``bound x``: no plan under the condition, even one that pauses, is more than x times better."""

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
    """Share of the idle time between the foreground's layers that the background gets; 1: no interference modelled."""
    device_name: str
    provenance: Literal["measured", "estimated"]
    """Estimated where one of the two profiles is."""
    extrapolated_gpu_counts: tuple[int, ...]
    """Whose shard of the global batch lies above the profile's largest batch; 1 among them: every speed-up does."""
    single_gpu_iteration_time: float
    points: tuple[OperatingPoint, ...]
    """Burst parallel with collocation, fastest first: each slower one leaves more to the background."""
    data_parallel_partitions: tuple[OperatingPoint, ...]
    """By GPU count, the last one on all GPUs; there collocation adds nothing, as no GPU is ever idle."""
    burst_parallel_partitions: tuple[OperatingPoint, ...]
    """The fastest plan on each GPU count."""
    optimality: str
    """``exact``, or ``bound x``: a plan may be x times faster than a point with its background throughput."""
    search_time: float

    @property
    def background_alone_throughput(self) -> float:
        """Samples per second of the background on all GPUs."""
        return self.gpus / self.background_sample_time

    def efficient(self) -> tuple[OperatingPoint, ...]:
        """The points that none beats in both speed-up and cluster throughput; fastest first.

        Fewer than ``points`` where the foreground's samples count for more than the background's that they replace.
        """
        found: list[OperatingPoint] = []
        for point in self.points:
            if not found or point.throughput > found[-1].throughput:
                found.append(point)
        return tuple(found)

    def fastest(self, background_throughput: float) -> SharingAnswer:
        """The greatest speed-up that leaves the background at least so many samples per second.

        Raises:
            InvalidValueError: a negative throughput.
            PlanError: no plan leaves as much without pausing.
        """
        if not background_throughput >= 0:
            raise InvalidValueError(
                f"background_throughput must be at least 0, got {background_throughput:g}: it is samples per second "
                "over all GPUs that the background shall be left with"
            )
        enough = background_throughput * (1 - TOLERANCE)
        point = next((point for point in self.points if point.background_throughput >= enough), None)
        if point is None:
            most_beside = self.points[-1].background_throughput
            raise PlanError(
                f"no plan leaves {background_throughput:g} samples/s to {self.background_model}: beside {self.model} "
                f"on one GPU it trains {most_beside:.4g}, with the whole cluster to itself "
                f"{self.background_alone_throughput:.4g} (ask for less, or for more GPUs)"
            )
        most = optimality_factor(self.optimality) * max(self._paused_rates(background_throughput))
        return _answer(point, most * point.iteration_time)

    def highest_throughput(self, speedup: float) -> SharingAnswer:
        """The highest cluster throughput whose foreground is at least so many times as fast as one GPU.

        Raises:
            InvalidValueError: a speed-up that is not positive.
            PlanError: no point is as fast.
        """
        if not speedup > 0:
            raise InvalidValueError(
                f"speedup must be positive, got {speedup:g}: it is how many times as fast as on one GPU the foreground "
                "shall be, for example 4"
            )
        point = self._fullest(speedup)
        if point is None:
            raise PlanError(
                f"no plan makes {self.model} {speedup:g}x as fast as one GPU: the fastest reaches "
                f"{self.points[0].speedup:.4g}x on {self.gpus} GPUs (ask for less, or for more GPUs)"
            )
        factor = optimality_factor(self.optimality)
        return _answer(point, factor * self._paused_throughput(speedup / factor) / point.throughput)

    def comparisons(self) -> tuple[PartitionComparison, ...]:
        """Each data-parallel partition beside the best collocated plans."""
        return tuple(map(self._compare, self.data_parallel_partitions))

    def _compare(self, partition: OperatingPoint) -> PartitionComparison:
        enough = partition.throughput * (1 - TOLERANCE)
        # The frontier of a bounded search may lack a match; the partition is then its own.
        faster = next((point for point in self.points if point.throughput >= enough), partition)
        return PartitionComparison(partition, faster, self._fullest(partition.speedup) or partition)

    def _fullest(self, speedup: float) -> OperatingPoint | None:
        fast = [point for point in self.points if point.speedup >= speedup * (1 - TOLERANCE)]
        return max(fast, key=lambda point: point.throughput, default=None)

    def _lost(self, point: OperatingPoint) -> float:
        """V: GPU-seconds that one iteration of a point takes from the background."""
        return (self.gpus - point.background_throughput * self.background_sample_time) * point.iteration_time

    def _paused_rates(self, background_throughput: float) -> Iterator[float]:
        """Per point, the most iterations per second at which it leaves so much; longer pauses leave more."""
        free = max(0.0, self.gpus - background_throughput * self.background_sample_time)
        for point in self.points:
            yield min(1 / point.iteration_time, free / self._lost(point))

    def _paused_throughput(self, speedup: float) -> float:
        """The highest cluster throughput of any point that pauses until just as fast, or does not pause."""
        slowest = speedup / self.single_gpu_iteration_time
        found = []
        for point in self.points:
            if point.speedup >= speedup * (1 - TOLERANCE):
                # Linear in the iterations per second, so an end of the interval is best.
                gained = self.global_batch - self._lost(point) / self.background_sample_time
                found += [point.throughput, self.background_alone_throughput + gained * slowest]
        return max(found)

    def __str__(self) -> str:
        first, last = self.points[0], self.points[-1]
        alone = self.data_parallel_partitions[-1]
        return (
            f"{self.model}, batch {self.global_batch} on {self.gpus} GPUs ({self.cluster.name}), with "
            f"{self.background_model}, batch {self.background_batch}, in {100 * self.harvest_of_idle:g} % of its idle "
            f"time (no interference modelled): {len(self.points)} efficient plans, from {first.speedup:.2f}x one GPU "
            f"and {first.throughput:.4g} samples/s in all to {last.speedup:.2f}x and {last.throughput:.4g}; data "
            f"parallel on all GPUs {alone.speedup:.2f}x and {alone.throughput:.4g}; {self.optimality}"
        )


def optimality_factor(optimality: str) -> float:
    """The number in a claim of optimality."""
    return 1.0 if optimality == "exact" else float(optimality.removeprefix("bound "))


def _answer(point: OperatingPoint, factor: float) -> SharingAnswer:
    return SharingAnswer(point, certificate(factor if factor > 1 + TOLERANCE else 1.0))

"""``dp.scaling``: time to a target accuracy on more GPUs and faster networks.

The experiment behind figures 1 to 3 of DeepPool (section 2). The time to accuracy is the time of an iteration
times the steps that the global batch needs. *Weak scaling* keeps the per-GPU batch and loses steps to sample
efficiency; *strong scaling* keeps the global batch and loses time to small batches and to the network;
*batch-optimal scaling* takes the global batch that reaches the accuracy soonest at each GPU count. Each of
them is data parallel, every layer on all GPUs, and burst parallel.

Iterations are priced as they run: all-reduces overlap the backward pass in buckets, and data parallelism is that which
plans are compared with. A search with overlap takes too long for hundreds of points, so a burst-parallel point is the
plan of the exact search without it, timed as it runs, or data parallelism on some of the GPUs if that is faster. In the
paper's model (``network_model="paper"``) nothing overlaps, and points are what the exact search finds.

A network of some speed is a cluster with that bandwidth between any two GPUs: full bisection, as the paper
assumes. The memory of a GPU is no limit here.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import real_number, whole_number
from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import Network, NetworkModel
from deeppool.costs.table import CostTable, price
from deeppool.errors import InvalidValueError, MissingProfileError, MissingStepsError, PlanError
from deeppool.job import Progress
from deeppool.planning.evaluate.baselines import DataParallelTime, data_parallel_times
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.request import MAXIMUM_BATCH, check_batch, check_limit, gpu_counts_to_search
from deeppool.planning.search.search import search
from deeppool.planning.studies.scaling_record import (
    PARALLELISMS,
    STRATEGIES,
    MissingPoint,
    Parallelism,
    ScalingPoint,
    ScalingStudy,
    Strategy,
)
from deeppool.planning.studies.steps_to_accuracy import StepsToAccuracy
from deeppool.profiling.table import Profile
from deeppool.units import format_bit_rate, format_count

GPU_COUNTS = tuple(2**exponent for exponent in range(11))
"""GPU counts of a study, 1 to 1,024."""
BANDWIDTHS = tuple(bits / 8 for bits in (10e9, 200e9, 1e12, 4.8e12))
"""Bytes per second of networks that DeepPool's section 2 names: 10 Gbit/s (on figure 3), 200 Gbit/s (ConnectX-6),
1 Tbit/s (figure 1), 4.8 Tbit/s (figure 2); taken as what a GPU sends while it receives as much."""
LATENCY = 5e-6
"""Seconds before the first byte arrives; estimated, as for the links of ``cluster``: the paper gives none."""
GLOBAL_BATCH = 256
"""Global batch of strong scaling, per-GPU batch of weak scaling: DeepPool, figures 1 and 3."""

BATCHES_PER_OCTAVE = 2048
"""Per-GPU batches that are tried between one and its double."""

UNKNOWN = (MissingProfileError, MissingStepsError, PlanError)
"""Errors that make one point missing instead of failing the study."""


@interruptible
@typed
def scaling(
    profile: Profile,
    steps: StepsToAccuracy,
    *,
    gpu_counts: Sequence[int] = GPU_COUNTS,
    bandwidths: Sequence[float] = BANDWIDTHS,
    global_batch: int = GLOBAL_BATCH,
    per_gpu_batch: int | None = None,
    amplification_limit: float | None = None,
    network_model: NetworkModel = "best",
    latency: float = LATENCY,
    on_progress: Progress | None = None,
) -> ScalingStudy:
    """Returns the time to accuracy by weak, strong and batch-optimal scaling, data parallel and burst parallel.

    Batch-optimal scaling tries global batches of at least a sample per GPU, per-GPU batches up to the
    profile's largest or weak scaling's, and the batches of weak and strong scaling. Data parallel in the paper's model,
    and on one GPU, it tries every per-GPU batch up to 4,096, which is exact where steps never rise with the batch, and
    above it some at most 0.05 % apart; else, where each batch takes a schedule or a search of its own, the powers of
    two and the best batch of data parallelism without overlap.

    Args:
        profile: layer times; a point that uses times above its largest batch is marked, one that needs times
            below its smallest is missing.
        steps: global batch → steps to the target accuracy; see ``deeppool.planning.studies.steps_to_accuracy``.
        gpu_counts: GPU counts of the points.
        bandwidths: bytes per second of a GPU's link, each direction.
        global_batch: global batch of strong scaling.
        per_gpu_batch: batch of weak scaling; None: ``global_batch``, so that both start from the same iteration.
        amplification_limit: limit of every layer of the burst-parallel plans, as for :func:`deeppool.plan`.
        network_model: pattern of the all-reduces, see ``deeppool.costs.communication``; ``paper`` is DeepPool's model,
            in which nothing overlaps them and updates take no time.
        latency: latency of every link, seconds.
        on_progress: called for every GPU count at every network speed.

    Raises:
        InvalidValueError: an argument is out of its bounds.
        MissingStepsError: no batch is known to reach the accuracy on one GPU, the baseline of speed-ups.
    """
    started = time.perf_counter()
    if not len(gpu_counts) or not len(bandwidths):  # of an array "not" asks for its elements
        raise InvalidValueError("gpu_counts and bandwidths must each have a value (leave them out for the defaults)")
    # A cluster checks the number of its GPUs, and holds Python's for one of NumPy.
    counts = tuple(sorted({Cluster(count).gpus for count in gpu_counts}))
    speeds = tuple(sorted({real_number("bandwidth", bandwidth) for bandwidth in bandwidths}))
    global_batch = whole_number("global_batch", global_batch, most=MAXIMUM_BATCH)
    per_gpu = (
        global_batch if per_gpu_batch is None else whole_number("per_gpu_batch", per_gpu_batch, most=MAXIMUM_BATCH)
    )
    amplification_limit = check_limit(amplification_limit)
    compute = cache(profile.iteration_time)
    job = _Job(profile, compute, steps, global_batch, per_gpu, amplification_limit, network_model)
    alone = _Site(job, 1, speeds[0], latency)
    single_batch = alone.best_batch("data-parallel")
    single_time = alone.time_to_accuracy(single_batch, "data-parallel")
    points: list[ScalingPoint] = []
    missing: list[MissingPoint] = []
    sites = [_Site(job, gpus, bandwidth, latency) for bandwidth in speeds for gpus in counts]
    for done, site in enumerate(sites):
        if on_progress is not None:
            on_progress(f"{format_count(site.gpus, 'GPU')} at {format_bit_rate(site.bandwidth)}", done / len(sites))
        for strategy in STRATEGIES:
            for parallelism in PARALLELISMS:
                try:
                    points.append(site.point(strategy, parallelism, single_time))
                except UNKNOWN as error:
                    missing.append(MissingPoint(strategy, parallelism, site.bandwidth, site.gpus, str(error)))
    return ScalingStudy(
        model=profile.graph.model,
        device=profile.device,
        device_name=profile.device_name,
        precision=profile.precision,
        provenance=profile.provenance,
        profile_batch_sizes=profile.batch_sizes,
        steps_name=steps.name,
        steps_source=steps.source,
        network_model=network_model,
        latency=latency,
        gpu_counts=counts,
        bandwidths=speeds,
        global_batch=global_batch,
        per_gpu_batch=per_gpu,
        amplification_limit=amplification_limit,
        single_gpu_batch=single_batch,
        single_gpu_time=single_time,
        points=tuple(points),
        missing=tuple(missing),
        study_time=time.perf_counter() - started,
    )


def full_bisection(gpus: int, bandwidth: float, latency: float = LATENCY) -> Cluster:
    """Returns a cluster in which any two GPUs have a link of ``bandwidth`` bytes per second each direction."""
    link = Link(bandwidth, latency, f"{format_bit_rate(bandwidth)} each direction, chosen for a scaling study")
    return Cluster(gpus, f"{format_bit_rate(bandwidth)} full bisection", gpus, link, link, memory=None)


@dataclass(frozen=True, slots=True)
class _Job:
    """Workload of a study, and the limits of its scaling."""

    profile: Profile
    compute: Callable[[int], float]
    """Seconds of forward and backward of all layers on one GPU, by per-GPU batch."""
    accuracy: StepsToAccuracy
    global_batch: int
    per_gpu_batch: int
    amplification_limit: float | None
    network_model: NetworkModel

    def steps(self, batch: int) -> int:
        """Returns the steps to the accuracy at a global batch.

        Raises:
            MissingStepsError: they are not known.
            InvalidValueError: a model of one's own gives no whole number of them.
        """
        return whole_number(f"steps of '{self.accuracy.name}' at batch {batch}", self.accuracy.steps(batch))


class _Iteration(NamedTuple):
    """A predicted iteration."""

    seconds: float
    gpu_seconds: float
    fewest: int
    """GPUs of the layer that has the fewest."""
    optimality: str


class _Site:
    """Predictions for one GPU count on one network."""

    def __init__(self, job: _Job, gpus: int, bandwidth: float, latency: float) -> None:
        self.job, self.gpus, self.bandwidth = job, gpus, bandwidth
        self.network = Network(full_bisection(gpus, bandwidth, latency), job.network_model)
        self.counts = gpu_counts_to_search(gpus, gpus)
        self.sync = sum(self.network.all_reduce_time(gpus, size) for size in job.profile.graph.gradient_bytes)
        # On one GPU nothing is sent, so that an iteration is a sum in any model.
        self._in_sequence = gpus == 1 or job.network_model == "paper"
        self._update = 0.0 if job.network_model == "paper" else sum(job.profile.update_times())
        self._known: dict[tuple[Parallelism, int], _Iteration] = {}

    def point(self, strategy: Strategy, parallelism: Parallelism, single_time: float) -> ScalingPoint:
        """Returns the point of one strategy; its speed-up is relative to ``single_time``."""
        batch = self._batch(strategy, parallelism)
        steps = self.job.steps(batch)
        found = self._iteration(batch, parallelism)
        # A limit is relative to one GPU, which then holds the whole batch.
        limited = parallelism == "burst-parallel" and self.job.amplification_limit is not None
        widest = -(-batch // (1 if limited else found.fewest))
        return ScalingPoint(
            strategy=strategy,
            parallelism=parallelism,
            bandwidth=self.bandwidth,
            gpus=self.gpus,
            global_batch=batch,
            per_gpu_batch=self._per_gpu_batch(batch),
            iteration_time=found.seconds,
            steps=steps,
            time_to_accuracy=steps * found.seconds,
            speedup=single_time / (steps * found.seconds),
            gpu_seconds=steps * found.gpu_seconds,
            extrapolated=widest > self.job.profile.batch_sizes[-1],
            optimality=found.optimality,
        )

    def best_batch(self, parallelism: Parallelism) -> int:
        """Returns the global batch that reaches the accuracy soonest, of those that are tried.

        Raises:
            MissingStepsError: none has both layer times and steps.
        """
        if parallelism == "data-parallel" and self._in_sequence:
            return self._best_in_sequence
        tried = sorted({*self._batches(1), self._best_in_sequence})
        return self._best(tried, lambda batch: self._iteration(batch, parallelism).seconds)

    def time_to_accuracy(self, batch: int, parallelism: Parallelism) -> float:
        """Returns the seconds to accuracy with a global batch.

        Raises:
            MissingProfileError, MissingStepsError, PlanError: the point cannot be predicted.
        """
        return self.job.steps(batch) * self._iteration(batch, parallelism).seconds

    @cached_property
    def _best_in_sequence(self) -> int:
        """The best batch of data parallelism in which nothing overlaps."""
        return self._best(self._batches(BATCHES_PER_OCTAVE), self._seconds_in_sequence)

    def _best(self, batches: Iterable[int], seconds: Callable[[int], float]) -> int:
        best: tuple[float, int] | None = None
        errors: list[str] = []
        for batch in batches:
            try:
                reached = (self.job.steps(batch) * seconds(batch), batch)
            except UNKNOWN as error:
                errors.append(str(error))
            else:
                best = reached if best is None else min(best, reached)
        if best is None:
            raise MissingStepsError(
                f"no global batch on {format_count(self.gpus, 'GPU')} has both layer times and steps; "
                f"the smallest: {errors[0]}; the largest: {errors[-1]}"
            )
        return best[1]

    def _batch(self, strategy: Strategy, parallelism: Parallelism) -> int:
        if strategy == "weak":
            return self.job.per_gpu_batch * self.gpus
        return self.job.global_batch if strategy == "strong" else self.best_batch(parallelism)

    def _batches(self, per_octave: int) -> list[int]:
        """Returns global batches, ascending: those of weak and strong scaling, and some from each one to its double.

        Between two multiples of the GPU count the largest shard, and so a data-parallel iteration, is that of
        the larger one, which needs the fewest steps.
        """
        largest = max(self.job.profile.batch_sizes[-1], self.job.per_gpu_batch)
        octaves = (2**exponent for exponent in range(largest.bit_length()))
        per_gpu = (
            samples
            for first in octaves
            for samples in range(first, min(2 * first, largest + 1), -(-first // per_octave))
        )
        also = {self.job.per_gpu_batch * self.gpus, self.job.global_batch}
        return sorted(also.union(samples * self.gpus for samples in per_gpu))

    def _iteration(self, batch: int, parallelism: Parallelism) -> _Iteration:
        key = parallelism, batch
        if key not in self._known:
            predict = self._data_parallel if parallelism == "data-parallel" else self._burst_parallel
            self._known[key] = predict(batch)
        return self._known[key]

    def _data_parallel(self, batch: int) -> _Iteration:
        if self._in_sequence:
            seconds = self._seconds_in_sequence(batch)
        else:
            seconds = self._times(batch, price(self.job.profile, self.network, batch, (self.gpus,)))[-1].seconds
        return _Iteration(seconds, seconds * self.gpus, self.gpus, "exact")

    def _burst_parallel(self, batch: int) -> _Iteration:
        check_batch(self.gpus, batch)
        costs, limit = price(self.job.profile, self.network, batch, self.counts), self.job.amplification_limit
        found = search(replace(costs, overlap=False), limit)
        placed = Placement(costs, found.choices, found.starts)
        fewest = min(placed.gpu_count(layer) for layer in range(len(found.choices)))
        optimality = "heuristic" if costs.overlap else found.optimality
        ways = [_Iteration(placed.iteration_time, placed.gpu_seconds, fewest, optimality)]
        if costs.overlap and limit is None:
            times = self._times(batch, costs)
            ways += [_Iteration(one.seconds, one.gpu_seconds, one.gpus, optimality) for one in times]
        return min(ways)

    def _times(self, batch: int, costs: CostTable) -> tuple[DataParallelTime, ...]:
        return data_parallel_times(self.job.profile, costs, memory_model(self.job.profile, batch))

    def _seconds_in_sequence(self, batch: int) -> float:
        return self.job.compute(self._per_gpu_batch(batch)) + self.sync + self._update

    def _per_gpu_batch(self, batch: int) -> int:
        """Returns the samples of the largest shard."""
        check_batch(self.gpus, batch)
        return -(-batch // self.gpus)

"""Comparison of all strategies on one workload (figures 9 and 10 of DeepPool)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import real_number
from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError, PlanError
from deeppool.job import Progress
from deeppool.planning.request import check_batch
from deeppool.simulation.cluster.job_costs import STRATEGIES, ClusterStrategy
from deeppool.simulation.cluster.record import ClusterSimulation
from deeppool.simulation.cluster.simulate import simulate_cluster
from deeppool.simulation.cluster.workload import Source, WorkloadTrace, cluster_of_jobs, load_sources
from deeppool.units import format_count, format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """Makespan, completion times and throughput of a workload under one strategy."""

    strategy: ClusterStrategy
    foreground_gpus: int | None
    """Size of the foreground part of a partition."""
    amplification_limit: float | None
    """Limit of all foregrounds; None: each has the trace's."""
    makespan: float
    """Seconds until the last job finishes that can."""
    completion_time: float | None
    """Mean seconds from arrival to finish of the foregrounds that finished; None: none did."""
    speedup: float | None
    """Geometric mean over the same foregrounds, relative to one GPU."""
    foreground_throughput: float
    """Samples per second over the makespan, as is background_throughput."""
    background_throughput: float
    utilisation: float
    unfinished: int = 0
    """Number of jobs with a number of iterations that did not finish: there were never enough GPUs for them, or they
    waited behind a background that trains until all others have finished."""

    @property
    def throughput(self) -> float:
        """Samples per second of the cluster: foreground plus background."""
        return self.foreground_throughput + self.background_throughput

    @property
    def label(self) -> str:
        """The strategy with its partition and limit, for legends and tables."""
        part = "" if self.foreground_gpus is None else f", {self.foreground_gpus} for foregrounds"
        limit = "" if self.amplification_limit is None else f", limit {self.amplification_limit:g}"
        return f"{self.strategy}{part}{limit}"

    def __str__(self) -> str:
        time = "-" if self.completion_time is None else format_seconds(self.completion_time)
        speedup = "-" if self.speedup is None else f"{self.speedup:.2f}x"
        unfinished = f", {format_count(self.unfinished, 'job')} did not finish" if self.unfinished else ""
        return (
            f"{self.label}: foregrounds complete in {time} ({speedup} one GPU), makespan "
            f"{format_seconds(self.makespan)}, {format_rate(self.throughput, 4)} samples/s = "
            f"{format_rate(self.foreground_throughput, 4)} foreground + "
            f"{format_rate(self.background_throughput, 4)} background, "
            f"{100 * self.utilisation:.0f} % of GPU time in use{unfinished}"
        )


@dataclass(frozen=True, slots=True)
class ClusterComparison:
    """Results of all strategies on one workload."""

    KIND: ClassVar[str] = "cluster-comparison"

    trace: str
    cluster: Cluster
    interference: str
    provenance: Literal["measured", "estimated"]
    """Source of the layer times."""
    results: tuple[StrategyResult, ...]
    left_out: tuple[str, ...] = ()
    """Strategies under which a foreground does not fit into memory, and why."""
    caveats: tuple[str, ...] = ()
    """Uncertainties of the layer times, a sentence each."""

    def __post_init__(self) -> None:
        if not self.results:
            raise InvalidValueError("a comparison of strategies has results, got none")

    def __str__(self) -> str:
        heading = f"{self.trace} on {format_count(self.cluster.gpus, 'GPU')} ({self.cluster.name}); {self.interference}"
        left_out = (f"left out: {each}" for each in self.left_out)
        caveats = (f"caution: {each}" for each in self.caveats)
        return "\n".join([heading, *(f"  {line}" for line in (*self.results, *left_out, *caveats))])


@interruptible
@typed
def compare_strategies(
    trace: WorkloadTrace,
    cluster: Cluster | int,
    *,
    sources: Mapping[str, Source] | None = None,
    partitions: Sequence[int] | None = None,
    amplification_limits: Sequence[float] = (),
    on_progress: Progress | None = None,
    **options: Any,
) -> ClusterComparison:
    """Simulates a workload under every strategy.

    Args:
        trace: the jobs; foregrounds of profiles, since each strategy plans by itself.
        cluster: as for :func:`simulate_cluster`.
        sources: as for :func:`simulate_cluster`.
        partitions: foreground GPUs of each static partition; powers of two and all GPUs by default, but none without
            backgrounds' GPUs for a trace without foregrounds.
        amplification_limits: limits with which ``collocated`` is simulated again, for all foregrounds.
        on_progress: receives what is being simulated and the completed fraction.
        options: further arguments of :func:`simulate_cluster`.

    Raises:
        InvalidValueError, PlanError, MissingProfileError, DocumentError: as for :func:`simulate_cluster`; of memory
            only if no strategy is left, as those under which a foreground does not fit are left out.
    """
    known = load_sources(trace) if sources is None else sources
    cluster = cluster_of_jobs(trace, known, cluster)
    if partitions is None:
        powers = {2**exponent for exponent in range(cluster.gpus.bit_length())}
        whole = {cluster.gpus} if any(job.role == "foreground" for job in trace.jobs) else set()
        partitions = sorted({gpus for gpus in powers if gpus < cluster.gpus} | whole)
    for job in trace.jobs:
        if job.role == "foreground" and job.gpus is not None and job.batch is not None:
            check_batch(job.gpus, job.batch)
    report = on_progress or (lambda what, share: None)
    runs: list[tuple[ClusterStrategy, int | None, float | None]] = []
    for strategy in STRATEGIES:
        runs += [(strategy, gpus, None) for gpus in (partitions if strategy == "partition" else (None,))]
    limits = [real_number("amplification_limits", limit) for limit in amplification_limits]
    runs += [("collocated", None, limit) for limit in limits]
    results, left_out, found, refused = [], [], None, None
    caveats: dict[str, None] = {}
    for number, (strategy, gpus, limit) in enumerate(runs):
        name = strategy if gpus is None else f"{strategy} of {format_count(gpus, 'GPU')}"
        report(name, number / len(runs))
        jobs = trace if limit is None else with_limit(trace, limit)
        try:
            found = simulate_cluster(jobs, cluster, strategy=strategy, foreground_gpus=gpus, sources=known, **options)
        except PlanError as error:
            refused = error
            left_out.append(f"{name}: {error}")
            continue
        results.append(summarise_strategy(found, limit))
        caveats |= dict.fromkeys(found.caveats)
    report("done", 1.0)
    if found is None:
        assert refused is not None
        raise refused
    return ClusterComparison(
        trace.name, cluster, found.interference, found.provenance, tuple(results), tuple(left_out), tuple(caveats)
    )


def with_limit(trace: WorkloadTrace, limit: float) -> WorkloadTrace:
    """Returns the trace with one amplification limit for all foregrounds."""
    jobs = (replace(x, amplification_limit=limit) if x.role == "foreground" else x for x in trace.jobs)
    return replace(trace, jobs=tuple(jobs))


def summarise_strategy(found: ClusterSimulation, limit: float | None) -> StrategyResult:
    """Extracts the compared figures of a simulation; ``limit`` replaced the trace's limits."""
    return StrategyResult(
        strategy=found.strategy,
        foreground_gpus=found.foreground_gpus,
        amplification_limit=limit,
        makespan=found.makespan,
        completion_time=found.mean_completion_time(),
        speedup=None if math.isnan(found.mean_speedup) else found.mean_speedup,
        foreground_throughput=found.foreground_throughput,
        background_throughput=found.background_throughput,
        utilisation=found.utilisation,
        # A background that trains until all others have finished has no time alone; a foreground's is of its GPUs.
        unfinished=sum(
            job.finish is None and (job.role == "foreground" or job.alone_time is not None) for job in found.jobs
        ),
    )

"""``dp.share``: foreground speed-up against cluster throughput of two profiled jobs on one cluster."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import real_number, whole_number
from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import NetworkModel
from deeppool.costs.table import CostTable
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.evaluate.baselines import data_parallel_times
from deeppool.planning.evaluate.memory import MemoryModel, Optimizer, memory_model
from deeppool.planning.goal import GoalBackground, background_job, background_jobs, check_fits
from deeppool.planning.plan import GpuCounts, Plan
from deeppool.planning.planner import frontier_from_costs
from deeppool.planning.request import cluster_with_memory, cost_table, gpu_counts_to_search
from deeppool.planning.search.frontier import Frontier
from deeppool.planning.search.goal_query import idle_beside
from deeppool.planning.search.optimality import optimality_factor
from deeppool.planning.studies.tradeoff_record import OperatingPoint, SharedCluster, Strategy
from deeppool.profiling.table import Profile
from deeppool.units import format_bytes


@interruptible
@typed
def share(
    profile: Profile,
    cluster: Cluster | int,
    global_batch: int,
    background: Profile,
    *,
    background_batch: int | None = None,
    harvest_of_idle: float = 1.0,
    gpu_counts: GpuCounts = "powers",
    network_model: NetworkModel | None = None,
    optimizer: Optimizer = "momentum",
    memory: float | None = None,
) -> SharedCluster:
    """Returns foreground speed-up against cluster throughput: burst parallel with collocation, and static partitions.

    Every GPU that the foreground leaves idle trains the background job by itself, as in DeepPool (section 1), by the
    model of :mod:`deeppool.planning.studies.tradeoff_record`. A static partition gives k GPUs to the foreground and
    the others to the background for good, as in the paper's figure 10. Foregrounds that do not fit into the GPUs'
    memory are left out, and a background does not train beside one that leaves it no room.

        shared = dp.share(profile, 8, 32, background=profile)
        best = shared.fastest(background_throughput=1000).point
        plan = dp.plan(profile, best.gpus, 32, best.amplification_limit, limit_scope="iteration")

    Args:
        profile: profile of the foreground.
        cluster: as for :func:`plan`.
        global_batch: global batch of the foreground.
        background: profile of the background job, on the same kind of device.
        background_batch: its batch on each GPU; the profile's largest that fits into a GPU unless given.
        harvest_of_idle: the fraction of the idle time between the foreground's layers that the background uses,
            from 0 to 1; a run measures it (``run.background.harvest_of_idle``). Whole GPUs that the foreground
            never uses train the background at full speed whatever this is.
        gpu_counts: GPU counts that layers and partitions may have; a partition may have all GPUs.
        network_model: as for :func:`deeppool.plan`, like the next two.
        optimizer: of the foreground.
        memory: bytes of each GPU, in place of the cluster's.

    Raises:
        InvalidValueError: harvest_of_idle outside 0 … 1, a background batch above the profile's largest, or profiles of
            different devices.
        PlanError, MissingProfileError: as for :func:`plan`, where the background's batch is below its profile's, and
            where a GPU holds neither the background nor data parallelism on all GPUs.
    """
    global_batch = whole_number("global_batch", global_batch)
    held = memory_model(profile, global_batch, optimizer)
    cluster = cluster_with_memory(profile, cluster, memory, held)
    harvest_of_idle = _check(harvest_of_idle)
    if background_batch is None:
        job, *_ = background_jobs(profile, background, cluster.memory)
    else:
        batch = whole_number("background_batch", background_batch, least=None)
        job = background_job(profile, background, batch)
        check_fits(job, cluster.memory)
    searched = {*gpu_counts_to_search(cluster.gpus, global_batch, gpu_counts), cluster.gpus}
    counts = _counts_that_fit(searched, held, cluster)
    # The whole cluster comes first, so that an error names the requested GPU count.
    costs = {
        count: cost_table(profile, replace(cluster, gpus=count), global_batch, gpu_counts, network_model)
        for count in reversed(counts)
    }
    frontiers = {count: frontier_from_costs(profile, found, optimizer=optimizer) for count, found in costs.items()}
    plans = {count: [*_fitting(frontiers[count], costs[count], job, held)] for count in counts}
    alone = frontiers[cluster.gpus].single_gpu_iteration_time
    model = _ThroughputModel(cluster.gpus, global_batch, alone, job.sample_time, harvest_of_idle)
    return SharedCluster(
        model=profile.graph.model,
        background_model=background.graph.model,
        cluster=cluster,
        gpus=cluster.gpus,
        global_batch=global_batch,
        background_batch=job.batch or 0,
        background_sample_time=job.sample_time,
        background_memory=job.memory,
        harvest_of_idle=harvest_of_idle,
        device_name=profile.device_name,
        provenance="estimated" if "estimated" in (profile.provenance, background.provenance) else "measured",
        extrapolated_gpu_counts=tuple(k for k in counts if -(-global_batch // k) > profile.batch_sizes[-1]),
        single_gpu_iteration_time=alone,
        points=_collocated(model, plans),
        data_parallel_partitions=tuple(
            model.point(one.gpus, one.seconds, one.gpu_seconds, 0.0, strategy="data parallel", collocated=False)
            for one in data_parallel_times(profile, costs[cluster.gpus], held)
            if one.fits(cluster.memory)
        ),
        burst_parallel_partitions=tuple(model.point(k, *plans[k][0][:2], 0.0, collocated=False) for k in counts),
        optimality=_claim(frontiers.values(), job) if len(counts) == len(searched) else "heuristic",
        search_time=sum(found.search_time for found in frontiers.values()),
    )


def _check(harvest_of_idle: float) -> float:
    harvest_of_idle = real_number("harvest_of_idle", harvest_of_idle)
    if not 0 <= harvest_of_idle <= 1:
        raise InvalidValueError(
            f"harvest_of_idle must be from 0 to 1, got {harvest_of_idle:g} "
            "(a run measures more where the background also ran while the foreground computed; that is not modelled)"
        )
    return harvest_of_idle


def _counts_that_fit(counts: Iterable[int], held: MemoryModel, cluster: Cluster) -> list[int]:
    """Returns the GPU counts on which data parallelism fits, which takes the least memory of all plans; ascending."""
    capacity = math.inf if cluster.memory is None else cluster.memory
    needed = {count: held.replica(count) or 0 for count in sorted(counts)}
    found = [count for count, memory in needed.items() if memory <= capacity]
    if not found:
        raise PlanError(
            f"no static partition of {cluster.gpus} GPUs holds {held.graph.model}: with data parallelism on all of "
            f"them a GPU needs {format_bytes(needed[cluster.gpus])}, and has {format_bytes(capacity)} (deeppool plan "
            "says what fits)"
        )
    return found


def _fitting(
    front: Frontier, costs: CostTable, job: GoalBackground, memory: MemoryModel
) -> Iterator[tuple[float, float, float]]:
    """Yields seconds, GPU-seconds and those idle where the job has room, of the plans that fit, fastest first.

    Of data parallelism if none does, which leaves nothing idle.
    """
    for point in front.fitting:
        yield point.iteration_time, point.gpu_seconds, idle_beside(point, costs, job, memory)
    if not front.fitting:
        time = front.data_parallel_iteration_time
        yield time, front.gpus * time, 0.0


def _claim(frontiers: Collection[Frontier], job: GoalBackground) -> str:
    """Returns the weakest claim; none where other plans may fit, or leave room, in place of some that do not."""
    if any(len(front.fitting) < len(front.points) for front in frontiers):
        return "heuristic"
    if any(not job.fits(front.cluster.memory, point.memory or 0) for front in frontiers for point in front.points):
        return "heuristic"
    return max((front.optimality for front in frontiers), key=optimality_factor)


@dataclass(frozen=True, slots=True)
class _ThroughputModel:
    """Computes throughputs from times, by the formulas of ``tradeoff_record``."""

    gpus: int
    global_batch: int
    single_gpu_iteration_time: float
    sample_time: float
    harvest: float

    def point(
        self,
        gpus: int,
        iteration_time: float,
        gpu_seconds: float,
        idle: float,
        *,
        strategy: Strategy = "burst parallel",
        collocated: bool = True,
    ) -> OperatingPoint:
        """Returns the point of a foreground on ``gpus`` GPUs whose background uses some idle GPU-seconds of them."""
        idle_gpus = max(0.0, idle / iteration_time)
        foreground = self.global_batch / iteration_time
        background = (self.gpus - gpus + self.harvest * idle_gpus) / self.sample_time
        return OperatingPoint(
            strategy=strategy,
            gpus=gpus,
            collocated=collocated,
            iteration_time=iteration_time,
            gpu_seconds=gpu_seconds,
            amplification=gpu_seconds / self.single_gpu_iteration_time,
            speedup=self.single_gpu_iteration_time / iteration_time,
            foreground_throughput=foreground,
            background_throughput=background,
            throughput=foreground + background,
        )


def _collocated(
    model: _ThroughputModel, plans: Mapping[int, list[tuple[float, float, float]]]
) -> tuple[OperatingPoint, ...]:
    """Returns the plans, over all GPU counts, that none beats in speed-up and background throughput; fastest first."""
    return efficient_points(model.point(gpus, *plan) for gpus, found in plans.items() for plan in found)


def efficient_points(points: Iterable[OperatingPoint]) -> tuple[OperatingPoint, ...]:
    """Returns the points that none beats in speed-up and background throughput; fastest first."""
    # Of equal points the one on the fewest GPUs is kept.
    found = sorted(points, key=lambda point: (point.iteration_time, -point.background_throughput, point.gpus))
    efficient: list[OperatingPoint] = []
    for point in found:
        if not efficient or point.background_throughput > efficient[-1].background_throughput:
            efficient.append(point)
    return tuple(efficient)


def operating_point(shared: SharedCluster, plan: Plan) -> OperatingPoint:
    """Returns the operating point of a plan on the shared cluster, with collocation.

    Raises:
        InvalidValueError: the plan is of another model or batch, or for more GPUs than the cluster has.
    """
    if (plan.model, plan.global_batch) != (shared.model, shared.global_batch) or plan.gpus > shared.gpus:
        raise InvalidValueError(
            f"the plan is of {plan.model}, batch {plan.global_batch} on {plan.gpus} GPUs, the cluster trains "
            f"{shared.model}, batch {shared.global_batch} on up to {shared.gpus} GPUs (share it anew: dp.share)"
        )
    model = _ThroughputModel(
        shared.gpus,
        shared.global_batch,
        shared.single_gpu_iteration_time,
        shared.background_sample_time,
        shared.harvest_of_idle,
    )
    idle = plan.idle_gpu_seconds(shared.background_memory)
    return model.point(plan.gpus, plan.iteration_time, plan.gpu_seconds, idle)

"""The efficient plan that serves a goal best (see :mod:`deeppool.planning.goal`): a query of the frontier."""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

import numpy as np

from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable
from deeppool.errors import PlanError
from deeppool.planning.evaluate.baselines import DataParallelComparison, DataParallelTime
from deeppool.planning.evaluate.memory import MemoryModel
from deeppool.planning.evaluate.placement import Placement, data_parallel
from deeppool.planning.goal import GoalBackground
from deeppool.planning.search.efficient_plans import EfficientPlans, efficient_plans
from deeppool.planning.search.frontier import FrontierPoint
from deeppool.planning.search.hill_climbing import climb
from deeppool.planning.search.limited_costs import ROUNDING
from deeppool.planning.search.memory_constrained import search_fitting
from deeppool.planning.search.optimality import certificate
from deeppool.planning.search.overlap import uniform_plans
from deeppool.planning.search.search import SearchResult
from deeppool.units import format_bytes


def search_for_goal(
    costs: CostTable,
    data_parallel_times: tuple[DataParallelTime, ...],
    jobs: Sequence[GoalBackground],
    memory: MemoryModel,
) -> SearchResult:
    """Returns the efficient plan that serves a goal best, of those found that fit into the memory of a GPU.

    Args:
        costs: costs of layers and transfers.
        data_parallel_times: of which the fastest that fits says how fast the plan is.
        jobs: background job of goal ``cluster_throughput`` at its batches; none: goal ``ddp_speed``.
        memory: what plans hold; no plan is refused where it is unknown.

    Raises:
        PlanError: none of the plans as fast as data parallelism was found to fit.
    """
    found, capacity = efficient_plans(costs), costs.network.cluster.memory
    compared = DataParallelComparison(float(found.time[0]), data_parallel_times, capacity=capacity)
    # A bounded search may have no plan as fast as data parallelism.
    slowest = max(compared.fastest.seconds, compared.iteration_time) * (1 + TOLERANCE)
    plans = [Placement(costs, *found.trace(index)) for index in np.nonzero(found.time <= slowest)[0].tolist()]
    # Of as many GPU-seconds in more time a background gains, so that not only efficient plans count.
    plans += [plan for plan in uniform_plans(costs, None, slowest) if plan.iteration_time <= slowest]
    values = [_value(plan, jobs, memory) for plan in plans]
    ranked = [plans[x] for x in sorted(range(len(plans)), key=lambda x: (-values[x], plans[x].iteration_time))]
    fitting = [plan for plan in ranked if memory.fits(plan.gpus, capacity)]
    made = ranked[0]
    # Where a background has no room beside the plan, one that leaves it whole GPUs may serve better.
    if fitting[:1] != ranked[:1] or not all(map(_has_room(made, memory), jobs)):
        made, slowest = _fitting(costs, jobs, memory, slowest, fitting[:1])
    gap = made.gpu_seconds / found.least_work(slowest)
    if jobs:
        quickest = min(jobs, key=lambda job: job.sample_time)
        gap = _most_throughput(quickest, costs, found, slowest) / _value(made, jobs, memory)
    return SearchResult(made.options, made.starts, made.iteration_time, certificate(max(1.0, gap)))


def best_job(plan: Placement, jobs: Sequence[GoalBackground], memory: MemoryModel) -> tuple[GoalBackground, float]:
    """Returns the background job at the batch at which it trains most beside a plan, and its samples per iteration."""
    idle = plan.costs.network.cluster.gpus * plan.iteration_time - plan.gpu_seconds
    has_room = _has_room(plan, memory)
    trained = {job: (idle if has_room(job) else idle_gpu_seconds(plan, job, memory)) / job.sample_time for job in jobs}
    return max(trained.items(), key=itemgetter(1))


def idle_beside(point: FrontierPoint, costs: CostTable, job: GoalBackground, memory: MemoryModel) -> float:
    """Returns what :func:`idle_gpu_seconds` does of a plan of a frontier."""
    if job.fits(costs.network.cluster.memory, point.memory or 0):
        return costs.network.cluster.gpus * point.iteration_time - point.gpu_seconds
    options = tuple(map(costs.gpu_counts.index, point.gpu_counts))
    return idle_gpu_seconds(Placement(costs, options, point.first_gpus), job, memory)


def idle_gpu_seconds(plan: Placement, job: GoalBackground, memory: MemoryModel) -> float:
    """Returns the GPU-seconds of an iteration in which GPUs are idle that have room for a job beside a plan."""
    cluster = plan.costs.network.cluster
    held = memory.held(plan.gpus, cluster.gpus).tolist()
    return sum(idle for idle, used in zip(plan.idle_seconds(), held, strict=True) if job.fits(cluster.memory, used))


def _has_room(plan: Placement, memory: MemoryModel) -> Callable[[GoalBackground], bool]:
    """Returns whether every GPU of the plan has room for a background."""
    capacity = plan.costs.network.cluster.memory
    held = memory.peak(plan.gpus) if memory.known and capacity is not None else 0
    return lambda job: job.fits(capacity, held)


def _fitting(
    costs: CostTable, jobs: Sequence[GoalBackground], memory: MemoryModel, slowest: float, known: list[Placement]
) -> tuple[Placement, float]:
    """Returns the plan that serves a goal best of those found that fit, and the seconds that it may take.

    They are those that are known, data parallelism and the fastest one that fits, and what small changes make of these.
    They take at most ``slowest`` seconds, or as long as the fastest of them: data parallelism may be faster in other
    buckets, or in micro-steps.

    Raises:
        PlanError: there are none.
    """
    capacity = costs.network.cluster.memory

    def permitted(plan: Placement, _: Iterable[int] = ()) -> bool:
        return plan.iteration_time <= slowest and memory.fits(plan.gpus, capacity)

    def cost(plan: Placement) -> float:
        value = _value(plan, jobs, memory)
        return 1 / value if jobs else -value

    uniform = [data_parallel(costs, option) for option in range(len(costs.gpu_counts))]
    uniform = [plan for plan in uniform if memory.fits(plan.gpus, capacity)]
    starts = [*known, *uniform]
    if uniform:
        fastest = search_fitting(costs, None, "layer", memory)
        starts.append(Placement(costs, fastest.choices, fastest.starts))
    if not starts:
        needed = memory.replica(costs.network.cluster.gpus) or 0
        raise PlanError(
            f"no plan of {costs.graph.model} that is as fast as data parallelism was found to fit into "
            f"{format_bytes(capacity or 0)}, nor does that: each GPU would hold {format_bytes(needed)} (plan for goal "
            "'fastest', or on more GPUs)"
        )
    slowest = max(slowest, min(plan.iteration_time for plan in starts))
    changed = [climb(plan, permitted, value=cost, at_least=lambda plan: 0.0) for plan in starts if permitted(plan)]
    return min(changed, key=cost), slowest


def _value(plan: Placement, jobs: Sequence[GoalBackground], memory: MemoryModel) -> float:
    """Returns what a goal wants as much of as there can be: fewer GPU-seconds, or samples per second."""
    if not jobs:
        return -plan.gpu_seconds
    return (plan.costs.global_batch + best_job(plan, jobs, memory)[1]) / plan.iteration_time


def _most_throughput(background: GoalBackground, costs: CostTable, found: EfficientPlans, slowest: float) -> float:
    """Returns the cluster throughput that no plan within ``slowest`` seconds can exceed.

    Each plan has a corner of the bounds with no more seconds and no more GPU-seconds. At the plan's own time, the
    corner's GPU-seconds would leave no less to the background.
    """
    time, work = found.corners()
    within = time <= slowest * (1 + ROUNDING)
    time, work = time[within], work[within]
    # Per iteration: samples of the foreground, less those that its GPU-seconds cost the background.
    gained = costs.global_batch - work / background.sample_time
    throughput = np.where(gained > 0, gained / time, gained / slowest)
    return float(throughput.max()) + costs.network.cluster.gpus / background.sample_time

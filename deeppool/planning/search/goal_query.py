"""The efficient plan that serves a goal best (see :mod:`deeppool.planning.goal`): a query of the frontier."""

from collections.abc import Iterable

import numpy as np

from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable, Floats
from deeppool.errors import PlanError
from deeppool.planning.evaluate.baselines import DataParallelComparison, data_parallel_times
from deeppool.planning.evaluate.memory import MemoryModel
from deeppool.planning.evaluate.placement import Placement, data_parallel
from deeppool.planning.goal import GoalBackground
from deeppool.planning.search.efficient_plans import EfficientPlans, efficient_plans
from deeppool.planning.search.hill_climbing import climb
from deeppool.planning.search.limited_costs import ROUNDING
from deeppool.planning.search.memory_constrained import search_fitting
from deeppool.planning.search.optimality import certificate
from deeppool.planning.search.search import SearchResult
from deeppool.units import format_bytes


def search_for_goal(costs: CostTable, background: GoalBackground | None, memory: MemoryModel) -> SearchResult:
    """Returns the efficient plan that serves a goal best, of those found that fit into the memory of a GPU.

    Args:
        costs: costs of layers and transfers.
        background: of goal ``cluster_throughput``; None: goal ``ddp_speed``.
        memory: what plans hold; no plan is refused where it is unknown.

    Raises:
        PlanError: none of the plans as fast as data parallelism was found to fit.
    """
    found, capacity = efficient_plans(costs), costs.network.cluster.memory
    compared = DataParallelComparison(float(found.time[0]), data_parallel_times(costs, memory), capacity=capacity)
    # A bounded search may have no plan as fast as data parallelism.
    slowest = max(compared.fastest.seconds, compared.iteration_time) * (1 + TOLERANCE)
    values = _values(background, costs, found.time, found.work)
    fast = np.nonzero(found.time <= slowest)[0].tolist()
    plans = {index: Placement(costs, *found.trace(index)) for index in fast}
    fitting = [index for index in fast if memory.fits(plans[index].gpus, capacity)]
    best, *others = sorted(fast, key=lambda index: (-values[index], found.time[index]))
    if best in fitting:
        made, seconds, work = plans[best], float(found.time[best]), float(found.work[best])
    else:
        known = [plans[index] for index in others if index in fitting][:1]
        made = _fitting(costs, background, memory, slowest, known)
        seconds, work = made.iteration_time, made.gpu_seconds
    if background is None:
        gap = work / found.least_work(slowest)
    else:
        served = float(_values(background, costs, np.array(seconds), np.array(work)))
        gap = _most_throughput(background, costs, found, slowest) / served
    return SearchResult(made.options, made.starts, seconds, certificate(max(1.0, gap)))


def _fitting(
    costs: CostTable, background: GoalBackground | None, memory: MemoryModel, slowest: float, known: list[Placement]
) -> Placement:
    """Returns the plan that serves a goal best of those found that fit and take at most ``slowest`` seconds.

    They are those that are known, data parallelism and the fastest one that fits, and what small changes make of these.

    Raises:
        PlanError: there are none.
    """
    capacity = costs.network.cluster.memory

    def permitted(plan: Placement, _: Iterable[int] = ()) -> bool:
        return plan.iteration_time <= slowest and memory.fits(plan.gpus, capacity)

    def cost(plan: Placement) -> float:
        value = float(_values(background, costs, np.array(plan.iteration_time), np.array(plan.gpu_seconds)))
        return -value if background is None else 1 / value

    uniform = [data_parallel(costs, option) for option in range(len(costs.gpu_counts))]
    uniform = [plan for plan in uniform if memory.fits(plan.gpus, capacity)]
    starts = [*known, *uniform]
    if uniform:
        fastest = search_fitting(costs, None, "layer", memory)
        starts.append(Placement(costs, fastest.choices, fastest.starts))
    changed = [climb(plan, permitted, value=cost, at_least=lambda plan: 0.0) for plan in starts if permitted(plan)]
    if not changed:
        needed = memory.replica(costs.network.cluster.gpus) or 0
        raise PlanError(
            f"no plan of {costs.graph.model} that is as fast as data parallelism was found to fit into "
            f"{format_bytes(capacity or 0)}, nor does that: each GPU would hold {format_bytes(needed)} (plan for goal "
            "'fastest', or on more GPUs)"
        )
    return min(changed, key=cost)


def _values(background: GoalBackground | None, costs: CostTable, time: Floats, work: Floats) -> Floats:
    """Returns what a goal wants as much of as there can be: fewer GPU-seconds, or samples per second."""
    if background is None:
        return -work
    gpus = costs.network.cluster.gpus
    throughput: Floats = costs.global_batch / time + (gpus - work / time) / background.sample_time
    return throughput


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

"""The efficient plan that serves a goal best (see :mod:`deeppool.planning.goal`): a query of the frontier."""

import numpy as np

from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable, Floats
from deeppool.errors import PlanError
from deeppool.planning.evaluate.baselines import fastest_data_parallel
from deeppool.planning.evaluate.memory import MemoryModel
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.goal import Goal, GoalBackground
from deeppool.planning.search.efficient_plans import EfficientPlans, efficient_plans
from deeppool.planning.search.limited_costs import ROUNDING
from deeppool.planning.search.optimality import certificate
from deeppool.planning.search.search import SearchResult
from deeppool.units import format_bytes


def search_for_goal(
    costs: CostTable, goal: Goal, background: GoalBackground | None, memory: MemoryModel
) -> SearchResult:
    """Returns the efficient plan that serves a goal best, of those found that fit into the memory of a GPU.

    Args:
        costs: costs of layers and transfers.
        goal: one other than ``fastest``.
        background: of goal ``cluster_throughput``.
        memory: what plans hold; no plan is refused where it is unknown.

    Raises:
        PlanError: none of the plans as fast as data parallelism was found to fit.
    """
    found = efficient_plans(costs)
    # A bounded search may have no plan as fast as data parallelism.
    slowest = max(fastest_data_parallel(costs)[1], float(found.time[0])) * (1 + TOLERANCE)
    values = _values(goal, background, costs, found.time, found.work)
    fast = np.nonzero(found.time <= slowest)[0]
    capacity = costs.network.cluster.memory
    fitting = [index for index in fast.tolist() if memory.fits(Placement(costs, *found.trace(index)).gpus, capacity)]
    if not fitting:
        raise PlanError(
            f"no plan of {costs.graph.model} that is as fast as data parallelism was found to fit into "
            f"{format_bytes(costs.network.cluster.memory or 0)} (plan for goal 'fastest', or on more GPUs)"
        )
    best = max(fitting, key=lambda index: (values[index], -found.time[index]))
    if background is None:
        gap = float(found.work[best]) / found.least_work(slowest)
    else:
        gap = _most_throughput(background, costs, found, slowest) / float(values[best])
    options, starts = found.trace(best)
    return SearchResult(options, starts, float(found.time[best]), certificate(max(1.0, gap)))


def _values(goal: Goal, background: GoalBackground | None, costs: CostTable, time: Floats, work: Floats) -> Floats:
    """Returns what a goal wants as much of as there can be: fewer GPU-seconds, or samples per second."""
    if goal == "ddp_speed":
        return -work
    assert background is not None
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

"""The fastest plan in the model of a run: all-reduces overlap the backward pass, and the plan fits into the GPUs.

Without memory that is the search of ``overlap`` for a limit on each layer, and of ``efficient_plans`` for one on the
iteration. Where what they find does not fit, the plan that the memory-constrained search finds without overlap is
timed with it: how much memory a plan needs does not depend on overlap. Its bound is that of all plans, fitting or not.
"""

from collections.abc import Iterator
from dataclasses import replace

from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable
from deeppool.errors import PlanError
from deeppool.planning.evaluate.memory import MemoryModel
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.plan import LimitScope
from deeppool.planning.search.efficient_plans import efficient_plans, search_within
from deeppool.planning.search.memory_constrained import search_memory_constrained
from deeppool.planning.search.optimality import certificate, optimality_factor
from deeppool.planning.search.overlap import search_overlapping
from deeppool.planning.search.search import SearchResult
from deeppool.units import format_bytes


def search_as_run(costs: CostTable, limit: float | None, scope: LimitScope, memory: MemoryModel) -> SearchResult:
    """Returns the plan of least iteration time found that keeps the limit and fits into the memory of a GPU.

    Args:
        costs: costs of layers and transfers, with overlap.
        limit: limit on the amplification of each layer, or of the iteration; None: no limit.
        scope: which of the two.
        memory: what plans hold; no plan is refused where it is unknown.

    Raises:
        PlanError: no plan fits, or none was found to.
    """
    found = search_overlapping(costs, limit) if scope == "layer" else search_within(costs, limit)
    capacity = costs.network.cluster.memory
    if capacity is None or not memory.known or memory.peak(_placed(costs, found).gpus) <= capacity:
        return found
    bound = found.iteration_time / optimality_factor(found.optimality)
    fitting = list(_fitting(costs, limit, scope, memory, capacity))
    if not fitting:
        raise PlanError(
            f"no plan of {costs.graph.model} within amplification limit {limit:g} was found to fit into "
            f"{format_bytes(capacity)} (use a larger limit, or more GPUs)"
        )
    best = min(fitting, key=lambda placement: placement.iteration_time)
    time = best.iteration_time
    return SearchResult(best.options, best.starts, time, certificate(max(1.0, time / bound)))


def _fitting(
    costs: CostTable, limit: float | None, scope: LimitScope, memory: MemoryModel, capacity: float
) -> Iterator[Placement]:
    """Yields plans that keep the limit and fit."""
    alone = search_memory_constrained(replace(costs, overlap=False), limit, scope, memory, capacity)
    candidates = [_placed(costs, alone)]
    if scope == "iteration":
        found = efficient_plans(costs)
        candidates += [Placement(costs, *found.trace(point)) for point in range(len(found.time))]
    budget = costs.single_gpu_time * (1 + TOLERANCE) * (limit or 0.0)
    for placement in candidates:
        within = scope == "layer" or limit is None or placement.gpu_seconds <= budget
        if within and memory.peak(placement.gpus) <= capacity:
            yield placement


def _placed(costs: CostTable, result: SearchResult) -> Placement:
    return Placement(costs, result.choices, result.starts)

"""A plan of a model with branches within a moment, to show while the search goes on.

In sequence a model with branches is as quick to search as a chain: the exact search spends its time on partitions of
the GPUs among branches side by side. The bound is that of :mod:`deeppool.planning.evaluate.lower_bound`, of all plans.
"""

from collections.abc import Iterable

from deeppool.costs.table import CostTable
from deeppool.graph.series_parallel import branching_blocks, decompose
from deeppool.planning.assembly import assemble_plan
from deeppool.planning.evaluate.lower_bound import LowerBound, longest_path
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.noise import plan_or_data_parallel
from deeppool.planning.plan import Plan
from deeppool.planning.search.optimality import certificate
from deeppool.planning.search.overlap import SHARE, uniform_plans
from deeppool.planning.search.search import search
from deeppool.profiling.table import Profile


def quick_plan(profile: Profile, costs: CostTable, limit: float | None, known: Iterable[Plan] = ()) -> Plan | None:
    """Returns the fastest of plans in sequence and of plans that are known, with a bound on the optimum.

    Args:
        profile: profile that the costs were made of.
        costs: see :func:`deeppool.planning.request.cost_table`.
        limit: limit on the amplification of each layer; None: no limit.
        known: plans of the same costs, within the same limit or a lower one.

    Returns:
        None if no branches can run side by side, where the search itself takes a moment, and if no plan that is found
        fits into memory.
    """
    sources = [layer.predecessors for layer in costs.graph.layers]
    if not any(branching_blocks(decompose(sources))):
        return None
    memory = memory_model(profile, costs.global_batch)
    widest = list(uniform_plans(costs, limit))[-1:]
    found = [_in_sequence(costs, limit), *widest, *(_placement(costs, plan) for plan in known)]
    fitting = [plan for plan in found if memory.fits(plan.gpus, costs.network.cluster.memory)]
    best = min(fitting, key=lambda plan: plan.iteration_time, default=None)
    if best is None:
        return None
    path = longest_path(sources, [best.time(layer) for layer in range(len(sources))])
    made = assemble_plan(
        profile,
        best,
        memory,
        iteration_time=best.iteration_time,
        optimality=certificate(max(1.0, best.iteration_time / LowerBound(costs, path, limit).seconds())),
        amplification_limit=limit,
        explained=True,
    )
    return plan_or_data_parallel(made, profile, costs, memory) if costs.overlap else made


def _in_sequence(costs: CostTable, limit: float | None) -> Placement:
    """Returns a plan without branches side by side that is fast where a share of all-reduces counts."""
    extra = SHARE * costs.least_sync - costs.sync if costs.overlap else None
    found = search(costs, limit, extra, side_by_side=False, proving=False)
    return Placement(costs, found.choices, found.starts)


def _placement(costs: CostTable, plan: Plan) -> Placement:
    options = tuple(costs.gpu_counts.index(layer.gpu_count) for layer in plan.layers)
    return Placement(costs, options, tuple(layer.gpus[0] for layer in plan.layers))

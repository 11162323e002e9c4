"""Keeps data parallelism where no plan is faster than that by more than the profile can tell.

A profile's layers do not add up to the whole iteration exactly, so a plan whose gain over DDP, on as many of the GPUs
as it is fastest on, is smaller than that deviation may as well be slower. DDP may also be faster than all plans that
are searched: it has buckets that these have not (:mod:`deeppool.collectives.buckets`).
"""

from dataclasses import replace

from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable
from deeppool.planning.assembly import assemble_plan
from deeppool.planning.evaluate.baselines import fastest_data_parallel
from deeppool.planning.evaluate.memory import MemoryModel
from deeppool.planning.plan import Plan
from deeppool.planning.search.optimality import certificate, optimality_factor
from deeppool.profiling.table import Profile


def profile_noise(profile: Profile, batch: int) -> float:
    """Returns the relative error of an iteration that a profile's check of the nearest batch shows; 0 without any."""
    check = min(profile.checks, key=lambda check: abs(check.batch - batch), default=None)
    return 0.0 if check is None else max(abs(check.deviation), check.spread)


def plan_or_data_parallel(
    plan: Plan, profile: Profile, costs: CostTable, memory: MemoryModel, *, explained: bool = True
) -> Plan:
    """Returns data parallelism where it is faster or the plan's gain is below the profile's noise, else the plan.

    Args:
        plan: fastest plan that the search found.
        profile: profile that the costs were made of.
        costs: costs as run.
        memory: model of what each GPU holds.
        explained: see :func:`deeppool.planning.assembly.assemble_plan`.
    """
    compared = plan.comparison
    gpus, slower = compared.fastest.gpus, compared.gain < 1 - TOLERANCE
    noise = profile_noise(profile, -(-plan.global_batch // gpus))
    # Where not all GPUs are searched, no plan is on all; nor has one micro-steps.
    possible = bool(compared.fitting) and gpus in costs.gpu_counts and compared.fastest.micro_steps == 1
    if not possible or not (slower or replace(compared, error=noise).within_error):
        return plan
    placement = fastest_data_parallel(costs, costs.gpu_counts.index(gpus))
    kept = assemble_plan(
        profile,
        placement,
        memory,
        iteration_time=placement.iteration_time,
        optimality=certificate(max(1.0, compared.gain * optimality_factor(plan.optimality))),
        search_time=plan.search_time,
        amplification_limit=plan.amplification_limit,
        limit_scope=plan.limit_scope,
        explained=explained,
    )
    limit = plan.amplification_limit
    over = limit is not None and plan.limit_scope == "iteration" and kept.amplification > limit * (1 + TOLERANCE)
    if over or kept.over_limit:
        return plan
    if slower:
        return kept
    caveat = (
        f"the fastest plan gains {100 * (compared.gain - 1):.1f} % over data parallelism (DDP){compared.where}, less "
        f"than the {100 * noise:.1f} % by which the profile's layers deviate from its iterations, or these from each "
        "other: DDP is kept (profile longer, on an idle machine, to tell more)"
    )
    return replace(kept, caveats=(*kept.caveats, caveat), data_parallel_kept=True)

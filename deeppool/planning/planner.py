"""``dp.plan`` and ``dp.frontier``: plans of a profiled model on a cluster."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import whole_number
from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import NetworkModel
from deeppool.costs.table import CostTable
from deeppool.planning.assembly import assemble_plan
from deeppool.planning.best_buckets import with_buckets_of
from deeppool.planning.evaluate.baselines import data_parallel_times
from deeppool.planning.evaluate.memory import MemoryModel, Optimizer, gpu_names, memory_model
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.goal import Goal, GoalBackground, background_jobs, check_goal
from deeppool.planning.noise import plan_or_data_parallel
from deeppool.planning.plan import GpuCounts, LimitScope, Plan, PublishedClaim, Search
from deeppool.planning.request import check_limit, check_search, cluster_with_memory, cost_table
from deeppool.planning.search.efficient_plans import efficient_plans
from deeppool.planning.search.frontier import Frontier, FrontierPoint
from deeppool.planning.search.goal_query import best_job, search_for_goal
from deeppool.planning.search.memory_constrained import search_fitting
from deeppool.planning.search.published import search_published
from deeppool.planning.search.search import search_partitions
from deeppool.profiling.table import Profile
from deeppool.units import format_bytes


@interruptible
@typed
def plan(
    profile: Profile,
    cluster: Cluster | int,
    global_batch: int,
    amplification_limit: float | None = None,
    *,
    limit_scope: LimitScope = "layer",
    goal: Goal = "fastest",
    background: Profile | None = None,
    search: Search = "exact",
    gpu_counts: GpuCounts = "powers",
    network_model: NetworkModel | None = None,
    optimizer: Optimizer = "momentum",
    memory: float | None = None,
) -> Plan:
    """Returns the fastest burst-parallel plan that keeps the amplification limit and fits into the GPUs' memory.

    Or, by ``goal``, the one with the fewest GPU-seconds or the highest cluster throughput of those as fast as data
    parallelism. Where the gain over data parallelism is below the profile's noise, it is data parallelism
    (:mod:`deeppool.planning.noise`).

    Args:
        profile: layer times; per-GPU batches between its sizes are interpolated.
        cluster: the GPUs and links, or a number of GPUs: of the DGX of the profile's GPU, or cores of this machine.
        global_batch: samples per iteration, over all GPUs.
        amplification_limit: the most GPU-seconds that a layer may spend, transfers and gradient
            synchronisation included, as a multiple of its time on one GPU; at least 1. None: no limit.
        limit_scope: ``layer``, as in the paper, or ``iteration``: the limit is then a budget for all layers
            together, and some may spend more where others spend less.
        goal: ``fastest``; ``ddp_speed``: as fast as data parallelism with the fewest GPU-seconds; or
            ``cluster_throughput``: as fast, with the most samples per second of this job and a background job in its
            idle time. See :mod:`deeppool.planning.goal`; only ``fastest`` takes a limit.
        background: profile of the background job that ``cluster_throughput`` counts, on GPUs that have room for it
            and at the batch with which it trains most.
        search: ``exact``, or ``published``: the plan that DeepPool's paper would make of the same costs, which
            may be slower than the fastest one and exceed the limit and the memory (see ``over_limit``, ``claim`` and
            ``caveats`` of the plan).
        gpu_counts: ``powers`` of two, or ``all``; see :func:`deeppool.planning.request.gpu_counts_to_search`.
        network_model: see :mod:`deeppool.costs.communication`; None: ``measured`` where the cluster was,
            else ``nccl`` for GPUs of several nodes, else ``ring``.
            All-reduces of gradients overlap the backward pass, as they do in DDP, in buckets of the size that suits
            model and network (``Plan.buckets``); see :mod:`deeppool.planning.evaluate.schedule`. With ``paper``
            everything waits for each layer's own. A limit per layer counts each layer's own in full either way.
        optimizer: optimizer whose state each GPU holds; runs train by SGD with momentum.
        memory: bytes of each GPU, in place of the cluster's.

    Raises:
        InvalidValueError: a limit below 1, no samples, a limit on the iteration where the search has none, or options
            that do not go with the goal.
        PlanError: more GPUs than samples; no plan fits, or not the background by itself; or ``memory`` is given and the
            profile has no activation sizes.
        MissingProfileError: the profile has no time for a per-GPU batch.
    """
    global_batch = whole_number("global_batch", global_batch)
    cluster = cluster_with_memory(profile, cluster, memory, memory_model(profile, global_batch, optimizer))
    costs = cost_table(profile, cluster, global_batch, gpu_counts, network_model)
    amplification_limit = check_limit(amplification_limit)
    check_search(search, limit_scope)
    limited, published = amplification_limit is not None, search == "published"
    check_goal(goal, limited=limited, published=published, background=background is not None)
    return plan_from_costs(
        profile,
        costs,
        amplification_limit,
        limit_scope,
        goal=goal,
        jobs=() if background is None else background_jobs(profile, background, cluster.memory),
        search=search,
        optimizer=optimizer,
    )


def plan_from_costs(
    profile: Profile,
    costs: CostTable,
    amplification_limit: float | None,
    limit_scope: LimitScope,
    *,
    goal: Goal = "fastest",
    jobs: Sequence[GoalBackground] = (),
    search: Search = "exact",
    optimizer: Optimizer = "momentum",
    explained: bool = True,
    proving: bool = True,
) -> Plan:
    """Returns the plan that the search finds with costs that are already known.

    Args:
        profile: profile that the costs were made of.
        costs: see :func:`deeppool.planning.request.cost_table`.
        amplification_limit: see :func:`plan`.
        limit_scope: see :func:`plan`.
        goal: see :func:`plan`.
        jobs: background job that the goal counts, at each batch that it may have.
        search: see :func:`plan`.
        optimizer: see :func:`plan`.
        explained: adds the cost of every layer's other GPU counts, computed when it is first read; in a large graph
            that takes far longer than the search.
        proving: False: a limit per layer ends with the first good plan and a looser bound, in a fraction of the time
            where the model has branches.
    """
    claim: PublishedClaim | None = None
    memory = memory_model(profile, costs.global_batch, optimizer)
    started = time.perf_counter()
    if search == "published":
        published = search_published(costs, amplification_limit)
        result, claim = search_partitions(costs, published.choices, amplification_limit), published.claim
    elif goal != "fastest":
        result = search_for_goal(costs, data_parallel_times(profile, costs, memory), jobs, memory)
    else:
        asked = amplification_limit, limit_scope, memory
        result = search_fitting(costs, *asked, proving=proving)
        suiting = with_buckets_of(Placement(costs, result.choices, result.starts))
        if suiting is not costs:
            again = search_fitting(suiting, *asked, proving=proving)
            if again.iteration_time < result.iteration_time:
                costs, result = suiting, again
    search_time = time.perf_counter() - started
    placement = Placement(costs, result.choices, result.starts)
    made = assemble_plan(
        profile,
        placement,
        memory,
        iteration_time=placement.iteration_time if costs.overlap else result.iteration_time,
        optimality=result.optimality,
        search_time=search_time,
        amplification_limit=amplification_limit,
        limit_scope=limit_scope,
        explained=explained,
    )
    if goal == "fastest" and search == "exact" and costs.overlap:
        made = plan_or_data_parallel(made, profile, costs, memory, explained=explained)
    capacity = costs.network.cluster.memory
    if search == "published" and made.memory and capacity is not None and made.memory[0].total > capacity:
        fullest = made.memory[0]
        caveat = (
            f"GPU {fullest.gpus[0]} needs {format_bytes(fullest.total)} and has {format_bytes(capacity)}: the "
            "published search does not look at memory (the exact one does)"
        )
        made = replace(made, caveats=(*made.caveats, caveat))
    if jobs:
        made = _beside(made, best_job(placement, jobs, memory)[0])
    return replace(made, search=search, claim=claim, goal=goal)


def _beside(plan: Plan, background: GoalBackground) -> Plan:
    """Returns the plan with the background that its goal counts, and where that has no room."""
    caveats, full = plan.caveats, plan.without_room(background.memory)
    if full:
        caveats += (
            f"{gpu_names(full)} {'has' if len(full) == 1 else 'have'} no room for {background.model} at batch "
            f"{background.batch}, which needs {format_bytes(background.memory or 0)}: it trains only on the others",
        )
    return replace(plan, background=background, caveats=caveats)


@interruptible
@typed
def frontier(
    profile: Profile,
    cluster: Cluster | int,
    global_batch: int,
    *,
    gpu_counts: GpuCounts = "powers",
    network_model: NetworkModel | None = None,
    optimizer: Optimizer = "momentum",
    memory: float | None = None,
) -> Frontier:
    """Returns every efficient plan: iteration time against GPU-seconds; arguments and errors as for :func:`plan`.

    Memory does not enter the search: each point has the memory that its plan needs, and ``Frontier.fitting`` are
    those that fit. Where the fastest one under a limit does not, ``plan`` searches for another that does.

    ``plan(…, point.amplification, limit_scope="iteration")`` makes a point of it a plan that runs. A limit
    is at least 1; of the points below that, where layers gain more than they cost, ``plan`` takes the fastest
    under 1.
    """
    global_batch = whole_number("global_batch", global_batch)
    cluster = cluster_with_memory(profile, cluster, memory, memory_model(profile, global_batch, optimizer))
    return frontier_from_costs(
        profile, cost_table(profile, cluster, global_batch, gpu_counts, network_model), optimizer=optimizer
    )


def frontier_from_costs(profile: Profile, costs: CostTable, *, optimizer: Optimizer = "momentum") -> Frontier:
    """Returns the frontier of costs that are already known; see :func:`frontier`."""
    model, cluster = memory_model(profile, costs.global_batch, optimizer), costs.network.cluster
    started = time.perf_counter()
    efficient = efficient_plans(costs)
    search_time = time.perf_counter() - started
    plans = [efficient.trace(index) for index in range(len(efficient.time))]
    points = [
        FrontierPoint(
            float(seconds),
            float(gpu_seconds),
            float(gpu_seconds) / costs.single_gpu_time,
            tuple(costs.gpu_counts[option] for option in options),
            starts,
            needed,
        )
        for seconds, gpu_seconds, (options, starts), needed in zip(
            efficient.time, efficient.work, plans, _peaks(costs, model, plans), strict=True
        )
    ]
    layers = profile.graph.layers
    *fewer, everywhere = data_parallel_times(profile, costs, model)
    return Frontier(
        model=profile.graph.model,
        cluster=cluster,
        gpus=cluster.gpus,
        global_batch=costs.global_batch,
        layers=tuple(layer.name for layer in layers),
        single_gpu_iteration_time=costs.single_gpu_time,
        data_parallel_iteration_time=everywhere.seconds,
        data_parallel_on_fewer=tuple(fewer),
        data_parallel_memory=everywhere.memory,
        data_parallel_micro_steps=everywhere.micro_steps,
        points=tuple(points),
        optimality=efficient.optimality,
        pareto_factor=efficient.pareto_factor,
        search_time=search_time,
        caveats=profile.caveats(layer.name for layer, far in zip(layers, costs.extrapolated[:, 0], strict=True) if far),
    )


def _peaks(
    costs: CostTable, memory: MemoryModel, plans: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> list[int | None]:
    """Returns the bytes on the GPU that holds most, per plan (options and first GPUs of its layers)."""
    if not memory.known:
        return [None] * len(plans)
    in_sequence = memory.peaks_in_sequence(np.array(costs.gpu_counts)[[options for options, _ in plans]]).tolist()
    return [
        memory.peak(Placement(costs, options, starts).gpus) if any(starts) else peak
        for (options, starts), peak in zip(plans, in_sequence, strict=True)
    ]

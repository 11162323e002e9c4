"""A profile, a cluster and a limit → :class:`Plan`."""

import math
import time
from dataclasses import replace
from typing import get_args

import numpy as np

from deeppool.cluster.cluster import Cluster
from deeppool.costs.amplification import TOLERANCE, amplification
from deeppool.costs.communication import Network, NetworkModel, default_model
from deeppool.costs.table import CostTable, price
from deeppool.device.common import AUTOCAST
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.evaluate.baselines import data_parallel_time, data_parallel_times
from deeppool.planning.evaluate.memory import MemoryModel, Optimizer
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.plan import GpuCounts, LayerAssignment, LimitScope, Plan, PublishedClaim, Search
from deeppool.planning.report.explain import alternatives
from deeppool.planning.search.frontier import Frontier, FrontierPoint, efficient_plans, search_within
from deeppool.planning.search.memory_constrained import search_memory_constrained
from deeppool.planning.search.overlap import search_overlapping
from deeppool.planning.search.published import search_published
from deeppool.planning.search.search import SearchResult, search_partitions
from deeppool.planning.search.search import search as search_exactly
from deeppool.profiling.table import Profile
from deeppool.units import format_bytes


def plan(
    profile: Profile,
    cluster: Cluster | int,
    global_batch: int,
    amplification_limit: float | None = None,
    *,
    limit_scope: LimitScope = "layer",
    search: Search = "exact",
    gpu_counts: GpuCounts = "powers",
    network_model: NetworkModel | None = None,
    overlap_sync: bool = False,
    optimizer: Optimizer = "momentum",
    memory: float | None = None,
) -> Plan:
    """The fastest burst-parallel plan that keeps the amplification limit and fits into the GPUs' memory.

    Args:
        profile: layer times; per-GPU batches between its sizes are interpolated.
        cluster: the GPUs and links, or a number of GPUs of a DGX A100.
        global_batch: samples per iteration, over all GPUs.
        amplification_limit: the most GPU-seconds that a layer may spend, transfers and gradient
            synchronisation included, as a multiple of its time on one GPU; at least 1. None: no limit.
        limit_scope: ``layer``, as in the paper, or ``iteration``: the limit is then a budget for all layers
            together, and some may spend more where others spend less.
        search: ``exact``, or ``published``: the plan that DeepPool's paper would make of the same prices, which
            may be slower than the fastest one and break the limit (see ``over_limit`` and ``claim`` of the plan).
        gpu_counts: ``powers`` of two, or ``all``; see :func:`gpu_counts_to_search`.
        network_model: see :mod:`deeppool.costs.communication`; None: ``measured`` where the cluster was, else ``ring``.
        overlap_sync: all-reduces of gradients overlap the backward pass, at no cost to it; see
            :mod:`deeppool.planning.evaluate.schedule`. False: everything waits for them, as in the paper. The limit counts
            them in full either way.
        optimizer: whose state each GPU holds; live runs train by SGD with momentum.
        memory: bytes of each GPU, in place of the cluster's.

    Raises:
        InvalidValueError: a limit below 1, no samples, or a limit on the iteration or overlap where the search
            has none.
        PlanError: more GPUs than samples; no plan fits, or ``memory`` is given and the profile does not say what
            layers keep.
        MissingProfileError: the profile cannot answer for a per-GPU batch.
    """
    if memory is not None:
        cluster = _with_memory(cluster, memory, _memory_model(profile, global_batch, optimizer))
    costs = cost_table(profile, cluster, global_batch, gpu_counts, network_model)
    check_limit(amplification_limit)
    _check_search(search, limit_scope, overlap_sync)
    return plan_from_costs(
        profile,
        costs,
        amplification_limit,
        limit_scope,
        search=search,
        overlap_sync=overlap_sync,
        optimizer=optimizer,
    )


def plan_from_costs(
    profile: Profile,
    costs: CostTable,
    amplification_limit: float | None,
    limit_scope: LimitScope,
    *,
    search: Search = "exact",
    overlap_sync: bool = False,
    optimizer: Optimizer = "momentum",
    explained: bool = True,
) -> Plan:
    """The plan that the search finds at prices that are already known.

    Args:
        profile: what the prices were made of.
        costs: prices.
        amplification_limit: see :func:`plan`.
        limit_scope: see :func:`plan`.
        search: see :func:`plan`.
        overlap_sync: see :func:`plan`.
        optimizer: see :func:`plan`.
        explained: price every layer's other GPU counts too; in a large graph that takes far longer than the search.
    """
    claim: PublishedClaim | None = None
    use = _memory_model(profile, costs.global_batch, optimizer)
    started = time.perf_counter()
    if search == "published":
        published = search_published(costs, amplification_limit)
        result, claim = search_partitions(costs, published.choices, amplification_limit), published.claim
    elif overlap_sync:
        result = _fitting(search_overlapping(costs, amplification_limit), costs, use)
    else:
        result = _search(costs, amplification_limit, limit_scope, use)
    search_time = time.perf_counter() - started
    placement = Placement(costs, result.choices, result.starts, overlap_sync)
    layers = assignments(placement, amplification_limit, limit_scope, explained)
    gpu_seconds = placement.gpu_seconds
    extrapolated = costs.extrapolated[:, 0] | costs.extrapolated[np.arange(len(layers)), result.choices]
    return Plan(
        model=profile.graph.model,
        input_shape=profile.graph.input_shape,
        inputs=profile.graph.inputs,
        granularity=profile.graph.granularity,
        parameter_bytes=profile.graph.parameter_bytes,
        graph_fingerprint=profile.graph.fingerprint,
        profile_fingerprint=profile.fingerprint,
        device=profile.device,
        device_name=profile.device_name,
        precision=profile.precision,
        provenance=profile.provenance,
        extrapolated_layers=tuple(x.name for x, far in zip(layers, extrapolated, strict=True) if far),
        cluster=costs.network.cluster,
        network_model=costs.network.model,
        gpu_counts=costs.gpu_counts,
        gpus=costs.network.cluster.gpus,
        global_batch=costs.global_batch,
        amplification_limit=amplification_limit,
        limit_scope=limit_scope,
        layers=layers,
        iteration_time=result.iteration_time,
        data_parallel_iteration_time=data_parallel_time(costs, overlap_sync=overlap_sync),
        single_gpu_iteration_time=costs.single_gpu_time,
        gpu_seconds=gpu_seconds,
        amplification=amplification(gpu_seconds, 1, costs.single_gpu_time),
        # One GPU keeps any limit for every layer, so none is exempt while one GPU is a choice.
        exempt_layers=(),
        optimality=result.optimality,
        search_time=search_time,
        search=search,
        over_limit=_over_limit(layers, amplification_limit, limit_scope),
        claim=claim,
        overlap_sync=overlap_sync,
        optimizer=optimizer,
        memory=use.use([layer.gpus for layer in layers], costs.network.cluster.gpus) if use.known else (),
        caveats=profile.caveats(layer.name for layer, far in zip(layers, extrapolated, strict=True) if far),
        origin=profile.origin,
    )


def _search(costs: CostTable, limit: float | None, scope: LimitScope, use: MemoryModel) -> SearchResult:
    capacity = costs.network.cluster.memory
    if capacity is not None and use.known:
        return search_memory_constrained(costs, limit, scope, use, capacity)
    return search_exactly(costs, limit) if scope == "layer" else search_within(costs, limit)


def _fitting(result: SearchResult, costs: CostTable, use: MemoryModel) -> SearchResult:
    """A plan with overlap, if it fits: others are not searched for."""
    capacity = costs.network.cluster.memory
    if capacity is not None and use.known:
        needed = use.peak(Placement(costs, result.choices, result.starts).gpus)
        if needed > capacity:
            raise PlanError(
                f"the fastest plan of {use.graph.model} with overlap_sync needs {format_bytes(needed)} on a GPU of "
                f"{format_bytes(capacity)}, and smaller ones are only searched without overlap (plan without "
                "overlap_sync, or with more GPUs)"
            )
    return result


def _memory_model(profile: Profile, global_batch: int, optimizer: Optimizer) -> MemoryModel:
    return MemoryModel(profile.graph, global_batch, optimizer, autocast=profile.precision in AUTOCAST)


def _with_memory(cluster: Cluster | int, memory: float, use: MemoryModel) -> Cluster:
    if not use.known:
        raise PlanError(
            f"the profile of {use.graph.model} does not say what its layers keep for the backward, so no plan can be "
            f"checked against {format_bytes(memory)} (profile again: older versions did not look)"
        )
    return replace(Cluster(cluster) if isinstance(cluster, int) else cluster, memory=memory)


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
    """Every efficient plan: iteration time against GPU-seconds; arguments and errors as for :func:`plan`.

    Memory does not enter the search: each point says what its plan holds, and ``Frontier.fitting`` are those that
    fit. Where the fastest one under a limit does not, ``plan`` searches for another that does.

    ``plan(…, point.amplification, limit_scope="iteration")`` makes a point of it a plan that runs. A limit
    is at least 1; of the points below that, where layers gain more than they cost, ``plan`` takes the fastest
    under 1.
    """
    use = _memory_model(profile, global_batch, optimizer)
    if memory is not None:
        cluster = _with_memory(cluster, memory, use)
    costs = cost_table(profile, cluster, global_batch, gpu_counts, network_model)
    started = time.perf_counter()
    efficient = efficient_plans(costs)
    search_time = time.perf_counter() - started
    plans = [efficient.trace(index) for index in range(len(efficient.time))]
    points = [
        FrontierPoint(
            float(seconds),
            float(work),
            float(work) / costs.single_gpu_time,
            tuple(costs.gpu_counts[option] for option in options),
            starts,
            needed,
        )
        for seconds, work, (options, starts), needed in zip(
            efficient.time, efficient.work, plans, _peaks(costs, use, plans), strict=True
        )
    ]
    return Frontier(
        model=profile.graph.model,
        cluster=costs.network.cluster,
        gpus=costs.network.cluster.gpus,
        global_batch=global_batch,
        layers=tuple(layer.name for layer in profile.graph.layers),
        single_gpu_iteration_time=costs.single_gpu_time,
        data_parallel_iteration_time=data_parallel_time(costs),
        gpu_counts=costs.gpu_counts,
        data_parallel_iteration_times=data_parallel_times(costs),
        points=tuple(points),
        optimality=efficient.optimality,
        search_time=search_time,
        caveats=profile.caveats(
            layer.name for layer, far in zip(profile.graph.layers, costs.extrapolated[:, 0], strict=True) if far
        ),
    )


def _peaks(
    costs: CostTable, use: MemoryModel, plans: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> list[int | None]:
    """Bytes on the GPU that holds most, per plan (options and first GPUs of its layers)."""
    if not use.known:
        return [None] * len(plans)
    in_sequence = use.peaks_in_sequence(np.array(costs.gpu_counts)[[options for options, _ in plans]]).tolist()
    return [
        use.peak(Placement(costs, options, starts).gpus) if any(starts) else peak
        for (options, starts), peak in zip(plans, in_sequence, strict=True)
    ]


def cost_table(
    profile: Profile,
    cluster: Cluster | int,
    global_batch: int,
    gpu_counts: GpuCounts = "powers",
    model: NetworkModel | None = None,
) -> CostTable:
    """Every price that :func:`plan` and :func:`frontier` search with; arguments and errors as for them."""
    if isinstance(cluster, int):
        cluster = Cluster(cluster)
    if global_batch < 1:
        raise InvalidValueError(f"global_batch must be at least 1, got {global_batch}")
    if cluster.gpus > global_batch:
        raise PlanError(
            f"{cluster.gpus} GPUs cannot share a global batch of {global_batch}: each needs a sample "
            f"(at most {global_batch} GPUs, or a larger batch)"
        )
    network = Network(cluster, model or default_model(cluster))
    counts = gpu_counts_to_search(cluster.gpus, global_batch, gpu_counts, network)
    return price(profile, network, global_batch, counts)


def check_limit(limit: float | None) -> None:
    """Raises InvalidValueError for a limit below 1."""
    if limit is not None and not limit >= 1:
        raise InvalidValueError(
            f"amplification_limit must be at least 1.0, got {limit:g} (1.0 permits only splits that cost nothing)"
        )


def _over_limit(layers: tuple[LayerAssignment, ...], limit: float | None, scope: LimitScope) -> tuple[str, ...]:
    if limit is None or scope == "iteration":
        return ()
    return tuple(layer.name for layer in layers if layer.amplification > limit * (1 + TOLERANCE))


def _check_search(search: Search, scope: LimitScope, overlap_sync: bool) -> None:
    if search not in get_args(Search):
        raise InvalidValueError(f"search must be one of {', '.join(get_args(Search))}, got '{search}'")
    if search == "published" and scope != "layer":
        raise InvalidValueError(
            f"limit_scope must be 'layer' with search='published', got '{scope}': the paper limits each layer "
            "by itself (use search='exact' for a limit on the iteration)"
        )
    if overlap_sync and search == "published":
        raise InvalidValueError(
            "overlap_sync needs search='exact', got 'published': in the paper everything waits for the all-reduces"
        )
    if overlap_sync and scope == "iteration":
        raise InvalidValueError(
            "overlap_sync needs limit_scope 'layer', got 'iteration': a limit on the whole iteration is searched "
            "without overlap (limit each layer, or plan without overlap_sync)"
        )


def gpu_counts_to_search(
    gpus: int, global_batch: int, which: GpuCounts = "powers", network: Network | None = None
) -> tuple[int, ...]:
    """GPU counts that a layer may have, ascending; 1 is always among them.

    ``powers`` are powers of two, as in the paper, and all GPUs. ``all`` stands for every count up to ``gpus``: of
    those that give the same largest shard ceil(global_batch / g) the smallest, which computes as fast and
    synchronises faster; there are at most 2 sqrt(global_batch) of them. A ``network`` whose all-reduce favours
    some counts (see :meth:`Network.favoured_by`) adds the smallest of those. All GPUs are only there if no
    smaller count does as well, so that what can be searched on some GPUs can be on more.
    """
    if which == "powers":
        counts = {2**exponent for exponent in range(gpus.bit_length()) if 2**exponent <= gpus} | {gpus}
    else:
        smallest: dict[tuple[int, str | None], int] = {}
        for count in range(1, gpus + 1):
            for pattern in (None, *(network.favoured_by(count) if network else ())):
                smallest.setdefault((-(-global_batch // count), pattern), count)
        counts = set(smallest.values())
    return tuple(sorted(counts))


def assignments(
    placement: Placement, limit: float | None, scope: LimitScope, explained: bool
) -> tuple[LayerAssignment, ...]:
    """The layers of a plan, with their prices where they are placed; see :func:`plan_from_costs` for the arguments."""
    costs, choices, starts = placement.costs, placement.options, placement.starts
    incoming = [placement.incoming(index) for index in range(len(choices))]
    compute = costs.compute
    layer_limit, spare_work = limit, math.inf
    if scope == "iteration" and limit is not None:
        rows = range(len(incoming))
        times = incoming + (compute + costs.sync)[rows, choices]
        work = float(times @ np.array(costs.gpu_counts)[list(choices)])
        layer_limit, spare_work = None, max(0.0, limit * costs.single_gpu_time - work)
    found = []
    for index, (layer, choice) in enumerate(zip(costs.graph.layers, choices, strict=True)):
        count = costs.gpu_counts[choice]
        total = float(incoming[index] + compute[index, choice] + costs.sync[index, choice])
        single = float(compute[index, 0])
        found.append(
            LayerAssignment(
                name=layer.name,
                predecessors=layer.predecessors,
                gpu_count=count,
                gpus=tuple(range(starts[index], starts[index] + count)),
                time=total,
                amplification=amplification(total, count, single),
                reshard=float(incoming[index]),
                forward=float(costs.forward[index, choice]),
                backward=float(costs.backward[index, choice]),
                sync=float(costs.sync[index, choice]),
                single_gpu_time=single,
                alternatives=alternatives(placement, index, layer_limit, spare_work) if explained else (),
            )
        )
    return tuple(found)

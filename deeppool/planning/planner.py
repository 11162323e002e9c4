"""A profile, a cluster and a limit → :class:`Plan`."""

import hashlib
import math
import time
from collections.abc import Callable

import numpy as np

from deeppool.cluster import Cluster
from deeppool.costs.amplification import amplification
from deeppool.costs.communication import Network, NetworkModel
from deeppool.costs.table import CostTable, price
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.baselines import data_parallel_time
from deeppool.planning.explain import alternatives
from deeppool.planning.frontier import Frontier, FrontierPoint, efficient_plans, search_within
from deeppool.planning.overlap import search_overlapping
from deeppool.planning.placement import Placement
from deeppool.planning.plan import GpuCounts, LayerAssignment, LimitScope, Plan
from deeppool.planning.search import SearchResult, search
from deeppool.profiling.table import Profile


def plan(
    profile: Profile,
    cluster: Cluster | int,
    global_batch: int,
    amplification_limit: float | None = None,
    *,
    limit_scope: LimitScope = "layer",
    gpu_counts: GpuCounts = "powers",
    network_model: NetworkModel = "ring",
    overlap_sync: bool = False,
) -> Plan:
    """The fastest burst-parallel plan that keeps the amplification limit.

    Args:
        profile: layer times; per-GPU batches between its sizes are interpolated.
        cluster: the GPUs and links, or a number of GPUs of a DGX A100.
        global_batch: samples per iteration, over all GPUs.
        amplification_limit: the most GPU-seconds that a layer may spend, transfers and gradient
            synchronisation included, as a multiple of its time on one GPU; at least 1. None: no limit.
        limit_scope: ``layer``, as in the paper, or ``iteration``: the limit is then a budget for all layers
            together, and some may spend more where others spend less.
        gpu_counts: ``powers`` of two, or ``all``; see :func:`gpu_counts_to_search`.
        network_model: see :mod:`deeppool.costs.communication`.
        overlap_sync: all-reduces of gradients overlap the backward pass, at no cost to it; see
            :mod:`deeppool.planning.schedule`. False: everything waits for them, as in the paper. The limit counts
            them in full either way.

    Raises:
        InvalidValueError: a limit below 1, no samples, or overlap under a limit on the whole iteration.
        PlanError: more GPUs than samples.
        MissingProfileError: the profile cannot answer for a per-GPU batch.
    """
    costs = _price(profile, cluster, global_batch, gpu_counts, network_model)
    _check_limit(amplification_limit)
    started = time.perf_counter()
    result = _search(limit_scope, overlap_sync)(costs, amplification_limit)
    search_time = time.perf_counter() - started
    placement = Placement(costs, result.choices, result.starts, overlap_sync)
    layers = _assignments(placement, amplification_limit, limit_scope)
    gpu_seconds = placement.gpu_seconds
    extrapolated = costs.extrapolated[:, 0] | costs.extrapolated[np.arange(len(layers)), result.choices]
    return Plan(
        model=profile.graph.model,
        input_shape=profile.graph.input_shape,
        parameter_bytes=profile.graph.parameter_bytes,
        graph_fingerprint=profile.graph.fingerprint,
        profile_fingerprint=hashlib.sha256(repr(profile.measurements).encode()).hexdigest()[:16],
        device=profile.device,
        device_name=profile.device_name,
        precision=profile.precision,
        provenance=profile.provenance,
        extrapolated_layers=tuple(x.name for x, far in zip(layers, extrapolated, strict=True) if far),
        cluster=costs.network.cluster,
        network_model=network_model,
        gpu_counts=costs.gpu_counts,
        gpus=costs.network.cluster.gpus,
        global_batch=global_batch,
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
        overlap_sync=overlap_sync,
        origin=profile.origin,
    )


def frontier(
    profile: Profile,
    cluster: Cluster | int,
    global_batch: int,
    *,
    gpu_counts: GpuCounts = "powers",
    network_model: NetworkModel = "ring",
) -> Frontier:
    """Every efficient plan: iteration time against GPU-seconds; arguments and errors as for :func:`plan`.

    ``plan(…, point.amplification, limit_scope="iteration")`` makes a point of it a plan that runs. A limit
    is at least 1; of the points below that, where layers gain more than they cost, ``plan`` takes the fastest
    under 1.
    """
    costs = _price(profile, cluster, global_batch, gpu_counts, network_model)
    started = time.perf_counter()
    efficient = efficient_plans(costs)
    search_time = time.perf_counter() - started
    points = []
    for index, (seconds, work) in enumerate(zip(efficient.time, efficient.work, strict=True)):
        options, starts = efficient.trace(index)
        counts = tuple(costs.gpu_counts[option] for option in options)
        points.append(FrontierPoint(float(seconds), float(work), float(work) / costs.single_gpu_time, counts, starts))
    return Frontier(
        model=profile.graph.model,
        cluster=costs.network.cluster,
        gpus=costs.network.cluster.gpus,
        global_batch=global_batch,
        layers=tuple(layer.name for layer in profile.graph.layers),
        single_gpu_iteration_time=costs.single_gpu_time,
        data_parallel_iteration_time=data_parallel_time(costs),
        points=tuple(points),
        optimality=efficient.optimality,
        search_time=search_time,
    )


def _price(
    profile: Profile, cluster: Cluster | int, global_batch: int, gpu_counts: GpuCounts, network_model: NetworkModel
) -> CostTable:
    if isinstance(cluster, int):
        cluster = Cluster(cluster)
    if global_batch < 1:
        raise InvalidValueError(f"global_batch must be at least 1, got {global_batch}")
    if cluster.gpus > global_batch:
        raise PlanError(
            f"{cluster.gpus} GPUs cannot share a global batch of {global_batch}: each needs a sample "
            f"(at most {global_batch} GPUs, or a larger batch)"
        )
    counts = gpu_counts_to_search(cluster.gpus, global_batch, gpu_counts)
    return price(profile, Network(cluster, network_model), global_batch, counts)


def _search(scope: LimitScope, overlap_sync: bool) -> Callable[[CostTable, float | None], SearchResult]:
    if not overlap_sync:
        return search if scope == "layer" else search_within
    if scope == "iteration":
        raise InvalidValueError(
            "overlap_sync needs limit_scope 'layer', got 'iteration': a limit on the whole iteration is searched "
            "without overlap (limit each layer, or plan without overlap_sync)"
        )
    return search_overlapping


def _check_limit(limit: float | None) -> None:
    if limit is not None and not limit >= 1:
        raise InvalidValueError(
            f"amplification_limit must be at least 1.0, got {limit:g} (1.0 permits only splits that cost nothing)"
        )


def gpu_counts_to_search(gpus: int, global_batch: int, which: GpuCounts = "powers") -> tuple[int, ...]:
    """GPU counts that a layer may have, ascending; 1 and all GPUs are always among them.

    ``powers`` are powers of two, as in the paper. ``all`` stands for every count up to ``gpus``: of those
    that give the same largest shard ceil(global_batch / g) the smallest, which computes as fast and
    synchronises faster; there are at most 2 sqrt(global_batch) of them.
    """
    if which == "powers":
        counts = {2**exponent for exponent in range(gpus.bit_length()) if 2**exponent <= gpus}
    else:
        smallest: dict[int, int] = {}
        for count in range(1, gpus + 1):
            smallest.setdefault(-(-global_batch // count), count)
        counts = set(smallest.values())
    return tuple(sorted({*counts, gpus}))


def _assignments(placement: Placement, limit: float | None, scope: LimitScope) -> tuple[LayerAssignment, ...]:
    costs, choices, starts = placement.costs, placement.options, placement.starts
    incoming = [placement.incoming(index) for index in range(len(choices))]
    layer_limit, spare_work = limit, math.inf
    if scope == "iteration" and limit is not None:
        rows = range(len(incoming))
        times = incoming + (costs.compute + costs.sync)[rows, choices]
        work = float(times @ np.array(costs.gpu_counts)[list(choices)])
        layer_limit, spare_work = None, max(0.0, limit * costs.single_gpu_time - work)
    found = []
    for index, (layer, choice) in enumerate(zip(costs.graph.layers, choices, strict=True)):
        count = costs.gpu_counts[choice]
        total = float(incoming[index] + costs.compute[index, choice] + costs.sync[index, choice])
        single = float(costs.compute[index, 0])
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
                alternatives=alternatives(placement, index, layer_limit, spare_work),
            )
        )
    return tuple(found)

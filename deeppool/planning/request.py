"""Validation of what a plan is requested for, and the costs that its search reads."""

import math
from dataclasses import replace
from typing import get_args

from deeppool.base.number_checks import real_number, whole_number
from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import Network, NetworkModel, default_model
from deeppool.costs.table import CostTable, price
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.best_buckets import with_best_buckets
from deeppool.planning.evaluate.memory import MemoryModel
from deeppool.planning.plan import GpuCounts, LimitScope, Search
from deeppool.profiling.default_cluster import cluster_of
from deeppool.profiling.table import Profile
from deeppool.units import format_bytes, format_count

MAXIMUM_BATCH = 10**9
"""Largest global batch: the bytes of its activations are a number of 64 bits."""


def cost_table(
    profile: Profile,
    cluster: Cluster | int,
    global_batch: int,
    gpu_counts: GpuCounts = "powers",
    model: NetworkModel | None = None,
) -> CostTable:
    """Returns the costs that :func:`plan` and :func:`frontier` search with; arguments and errors as for them."""
    cluster = cluster_of(profile, cluster)
    global_batch = check_batch(cluster.gpus, global_batch)
    network = Network(cluster, model or default_model(cluster, profile.device))
    counts = gpu_counts_to_search(cluster.gpus, global_batch, gpu_counts, network)
    return with_best_buckets(price(profile, network, global_batch, counts))


def gpu_counts_to_search(
    gpus: int, global_batch: int, which: GpuCounts = "powers", network: Network | None = None
) -> tuple[int, ...]:
    """Returns the GPU counts that a layer may have, ascending; 1 is always among them.

    ``powers`` are powers of two, as in the paper, and all GPUs. ``all`` covers every count up to ``gpus``: of
    those that give the same largest shard ceil(global_batch / g) the smallest, which computes as fast and
    synchronises faster; there are at most 2 sqrt(global_batch) of them. A ``network`` whose all-reduce favours
    some counts (see :meth:`Network.favoured_by`) adds the smallest of those. All GPUs are only there if no
    smaller count does as well, so that what can be searched on some GPUs can be on more.
    """
    if which not in get_args(GpuCounts):
        raise InvalidValueError(f"gpu_counts must be one of {', '.join(get_args(GpuCounts))}, got '{which}'")
    if which == "powers":
        return tuple(sorted({2**exponent for exponent in range(gpus.bit_length())} | {gpus}))
    smallest: dict[tuple[int, str | None], int] = {}
    for count in range(1, gpus + 1):
        for pattern in (None, *(network.favoured_by(count) if network else ())):
            smallest.setdefault((-(-global_batch // count), pattern), count)
    return tuple(sorted(set(smallest.values())))


def check_batch(gpus: int, global_batch: int) -> int:
    """Returns a batch as Python's number.

    Raises:
        InvalidValueError: it is no whole number of samples, or none.
        PlanError: more GPUs than samples, or more samples than a plan can have.
    """
    global_batch = whole_number("global_batch", global_batch)
    if global_batch > MAXIMUM_BATCH:
        raise PlanError(
            f"global_batch must be at most {MAXIMUM_BATCH}, got {global_batch} (it counts the samples of one iteration)"
        )
    if gpus > global_batch:
        raise PlanError(
            f"{gpus} GPUs cannot share a global batch of {global_batch}: each needs a sample "
            f"(at most {format_count(global_batch, 'GPU')}, or a larger batch)"
        )
    return global_batch


def check_limit(limit: float | None) -> float | None:
    """Returns a limit as Python's number; raises InvalidValueError for one below 1, and an infinite one."""
    if limit is None:
        return None
    limit = real_number("amplification_limit", limit)
    if limit == math.inf:
        raise InvalidValueError("amplification_limit must be finite, got inf (leave it out for no limit)")
    if not limit >= 1:
        raise InvalidValueError(
            f"amplification_limit must be at least 1.0, got {limit:g} (1.0 permits only splits that cost nothing)"
        )
    return limit


def check_search(search: Search, scope: LimitScope) -> None:
    """Raises InvalidValueError for options that the search does not support together."""
    if scope not in get_args(LimitScope):
        raise InvalidValueError(f"limit_scope must be one of {', '.join(get_args(LimitScope))}, got '{scope}'")
    if search not in get_args(Search):
        raise InvalidValueError(f"search must be one of {', '.join(get_args(Search))}, got '{search}'")
    if search == "published" and scope != "layer":
        raise InvalidValueError(
            f"limit_scope must be 'layer' with search='published', got '{scope}': the paper limits each layer "
            "by itself (use search='exact' for a limit on the iteration)"
        )


def cluster_with_memory(profile: Profile, cluster: Cluster | int, memory: float | None, model: MemoryModel) -> Cluster:
    """Returns the cluster, with ``memory`` bytes on each GPU in place of its own unless None.

    Raises:
        PlanError: ``memory`` is given, and the graph has no activation sizes.
    """
    cluster = cluster_of(profile, cluster)
    if memory is None:
        return cluster
    if not model.known:
        raise PlanError(
            f"the profile of {model.graph.model} does not say what its layers keep for the backward, so no plan can be "
            f"checked against {format_bytes(memory)} (profile again: older versions did not look)"
        )
    return replace(cluster, memory=memory)

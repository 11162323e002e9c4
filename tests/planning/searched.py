"""Plans and frontiers with or without overlap, by any network model; without, the search adds up all seconds."""

from dataclasses import replace

from deeppool.collectives.buckets import DEFAULT_BUCKETS
from deeppool.costs.communication import Network, default_model
from deeppool.costs.table import price
from deeppool.planning import planner
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.request import check_limit, check_search, cluster_with_memory, cost_table


def costs_of(profile, cluster, batch, gpu_counts, network_model, memory, optimizer, overlap_sync):
    """Costs of a request; GPU counts may be given one by one."""
    cluster = cluster_with_memory(profile, cluster, memory, memory_model(profile, batch, optimizer))
    if isinstance(gpu_counts, tuple):
        costs = price(
            profile, Network(cluster, network_model or default_model(cluster, profile.device)), batch, gpu_counts
        )
    else:
        costs = cost_table(profile, cluster, batch, gpu_counts, network_model)
    return costs if overlap_sync else replace(costs, overlap=False, buckets=DEFAULT_BUCKETS)


def buckets_of(problem, gpu_counts="powers"):
    """Buckets of the plans that are searched for a profile, a cluster and a batch."""
    return costs_of(*problem, gpu_counts, None, None, "momentum", True).buckets


def plan(
    profile,
    cluster,
    batch,
    limit=None,
    *,
    limit_scope="layer",
    search="exact",
    gpu_counts="powers",
    network_model=None,
    optimizer="momentum",
    memory=None,
    overlap_sync=False,
    proving=True,
):
    """As ``deeppool.plan``, whether the search proves its plan, and whether all-reduces overlap."""
    costs = costs_of(profile, cluster, batch, gpu_counts, network_model, memory, optimizer, overlap_sync)
    check_limit(limit)
    check_search(search, limit_scope)
    return planner.plan_from_costs(
        profile, costs, limit, limit_scope, search=search, optimizer=optimizer, proving=proving
    )


def frontier(
    profile,
    cluster,
    batch,
    *,
    gpu_counts="powers",
    network_model=None,
    optimizer="momentum",
    memory=None,
    overlap_sync=False,
):
    """As ``deeppool.frontier``, and whether all-reduces overlap."""
    costs = costs_of(profile, cluster, batch, gpu_counts, network_model, memory, optimizer, overlap_sync)
    return planner.frontier_from_costs(profile, costs, optimizer=optimizer)

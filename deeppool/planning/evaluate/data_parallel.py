"""Data parallelism as a plan, to be simulated, drawn and run like any other."""

from dataclasses import replace

from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import Network, NetworkModel, default_model
from deeppool.costs.table import price
from deeppool.planning.assembly import assemble_plan
from deeppool.planning.evaluate.baselines import data_parallel_time
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.plan import Plan
from deeppool.planning.request import check_batch
from deeppool.profiling.default_cluster import cluster_of
from deeppool.profiling.table import Profile


def data_parallel_plan(
    profile: Profile,
    cluster: Cluster | int,
    global_batch: int,
    *,
    network_model: NetworkModel | None = None,
) -> Plan:
    """Returns the plan that has every layer on all GPUs: the baseline whose time every plan states.

    Whether it fits into memory is not checked: a plan is compared with the baseline either way.

    Args:
        profile: layer times.
        cluster: the GPUs and links, or a number of GPUs of the profile's device.
        global_batch: samples per iteration, over all GPUs.
        network_model: as for :func:`deeppool.plan`.

    Raises:
        PlanError: more GPUs than samples.
        MissingProfileError: the profile has no time for a per-GPU batch.
    """
    cluster = cluster_of(profile, cluster)
    check_batch(cluster.gpus, global_batch)
    network = Network(cluster, network_model or default_model(cluster))
    costs = price(profile, network, global_batch, tuple(sorted({1, cluster.gpus})))
    size = len(profile.graph.layers)
    everywhere = Placement(costs, (len(costs.gpu_counts) - 1,) * size, (0,) * size)
    plan = assemble_plan(
        profile,
        everywhere,
        memory_model(profile, global_batch),
        iteration_time=data_parallel_time(costs),
        optimality="heuristic",
    )
    return replace(plan, memory=())

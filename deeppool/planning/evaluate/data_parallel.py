"""Data parallelism as a plan, so that it is simulated, drawn and run like any other."""

from dataclasses import replace

import numpy as np

from deeppool.cluster.cluster import Cluster
from deeppool.costs.amplification import amplification
from deeppool.costs.communication import Network, NetworkModel, default_model
from deeppool.costs.table import price
from deeppool.errors import PlanError
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.plan import Plan
from deeppool.planning.planner import assignments, plan_from_costs
from deeppool.profiling.table import Profile


def data_parallel_plan(
    profile: Profile,
    cluster: Cluster | int,
    global_batch: int,
    *,
    network_model: NetworkModel | None = None,
    overlap_sync: bool = False,
) -> Plan:
    """The plan that has every layer on all GPUs: the baseline that every plan names the time of.

    Args:
        profile: layer times.
        cluster: the GPUs and links, or a number of GPUs of a DGX A100.
        global_batch: samples per iteration, over all GPUs.
        network_model: as for :func:`deeppool.plan`.
        overlap_sync: as for :func:`deeppool.plan`.

    Raises:
        PlanError: more GPUs than samples.
        MissingProfileError: the profile cannot answer for a per-GPU batch.
    """
    cluster = Cluster(cluster) if isinstance(cluster, int) else cluster
    if cluster.gpus > global_batch:
        raise PlanError(
            f"{cluster.gpus} GPUs cannot share a global batch of {global_batch}: each needs a sample "
            f"(at most {global_batch} GPUs, or a larger batch)"
        )
    # Whether it fits into memory is not asked: a baseline is compared with all the same.
    network = Network(replace(cluster, memory=None), network_model or default_model(cluster))
    costs = price(profile, network, global_batch, tuple(sorted({1, cluster.gpus})))
    searched = plan_from_costs(profile, costs, None, "layer", overlap_sync=overlap_sync, explained=False)
    size = len(profile.graph.layers)
    everywhere = Placement(costs, (len(costs.gpu_counts) - 1,) * size, (0,) * size, overlap_sync)
    held = everywhere.gpu_seconds
    return replace(
        searched,
        cluster=cluster,
        gpu_counts=costs.gpu_counts[-1:],
        layers=assignments(everywhere, None, "layer", explained=False),
        iteration_time=searched.data_parallel_iteration_time,
        gpu_seconds=held,
        amplification=amplification(held, 1, costs.single_gpu_time),
        extrapolated_layers=tuple(
            layer.name
            for layer, far in zip(profile.graph.layers, np.any(costs.extrapolated, axis=1).tolist(), strict=True)
            if far
        ),
        optimality="heuristic",
        memory=(),
    )

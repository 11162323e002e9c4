"""Data parallelism as a plan, to be simulated, drawn and run like any other."""

from dataclasses import replace

from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import NetworkModel
from deeppool.planning.assembly import assemble_plan
from deeppool.planning.evaluate.baselines import fastest_data_parallel
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.plan import Plan
from deeppool.planning.request import cost_table
from deeppool.profiling.table import Profile


def data_parallel_plan(
    profile: Profile, cluster: Cluster | int, global_batch: int, *, network_model: NetworkModel | None = None
) -> Plan:
    """Returns the plan that has every layer on all GPUs; arguments and errors as for :func:`deeppool.plan`.

    It may be faster on fewer, and may not fit into memory: a plan is compared with it either way.
    """
    costs = cost_table(profile, cluster, global_batch, model=network_model)
    everywhere = fastest_data_parallel(costs, len(costs.gpu_counts) - 1)
    memory = memory_model(profile, global_batch)
    seconds = everywhere.iteration_time
    return replace(
        assemble_plan(profile, everywhere, memory, iteration_time=seconds, optimality="heuristic"), memory=()
    )

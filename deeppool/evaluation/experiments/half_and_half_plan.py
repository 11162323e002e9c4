"""A plan with the same idle time on every machine, for comparing collocation mechanisms."""

from deeppool.cluster.cluster import Cluster
from deeppool.planning.assembly import assemble_plan
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.plan import Plan
from deeppool.planning.request import cost_table
from deeppool.profiling.table import Profile


def half_and_half_plan(profile: Profile, cluster: Cluster | int, global_batch: int) -> Plan:
    """Plans the first half of the layers on all GPUs and the second half on GPU 0 alone.

    A search's plan follows the layer times, and so differs between nightly runs; this one is the same on every machine.

    Args:
        profile: layer times.
        cluster: the GPUs and links, or a number of GPUs of the profile's device.
        global_batch: samples per iteration, over all GPUs.

    Raises:
        PlanError: more GPUs than samples.
        MissingProfileError: the profile has no time for a per-GPU batch.
    """
    costs = cost_table(profile, cluster, global_batch)
    layers = len(profile.graph.layers)
    options = (len(costs.gpu_counts) - 1,) * (layers // 2) + (0,) * (layers - layers // 2)
    halves = Placement(costs, options, (0,) * layers)
    memory = memory_model(profile, global_batch)
    return assemble_plan(profile, halves, memory, iteration_time=halves.iteration_time, optimality="heuristic")

"""A plan with the same idle time on every machine, for comparing collocation mechanisms."""

from dataclasses import replace

from deeppool.cluster.cluster import Cluster
from deeppool.costs.amplification import amplification
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.plan import Plan
from deeppool.profiling.default_cluster import cluster_of
from deeppool.profiling.table import Profile


def half_and_half_plan(profile: Profile, cluster: Cluster | int, global_batch: int) -> Plan:
    """Plans the first half of the layers on all GPUs and the second half on GPU 0 alone.

    A search's plan follows the layer times, and so differs between nightly runs; this one is the same on every machine.
    No transfer is priced between the two halves.

    Args:
        profile: layer times.
        cluster: the GPUs and links, or a number of GPUs of the profile's device.
        global_batch: samples per iteration, over all GPUs.

    Raises:
        PlanError: more GPUs than samples.
        MissingProfileError: the profile has no time for a per-GPU batch.
    """
    cluster = cluster_of(profile, cluster)
    everywhere = data_parallel_plan(profile, cluster, global_batch)
    on_one = data_parallel_plan(profile, replace(cluster, gpus=1), global_batch)
    half = len(everywhere.layers) // 2
    layers = (*everywhere.layers[:half], *on_one.layers[half:])
    held = sum((layer.time + layer.update) * layer.gpu_count for layer in layers)
    return replace(
        everywhere,
        layers=layers,
        iteration_time=sum(layer.time + layer.update for layer in layers),
        gpu_seconds=held,
        amplification=amplification(held, 1, everywhere.single_gpu_iteration_time),
    )

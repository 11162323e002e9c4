"""Iteration times of data parallelism in the same cost model, which plans are compared with."""

import math
from dataclasses import replace

from deeppool.costs.table import CostTable
from deeppool.planning.evaluate.placement import Placement


def data_parallel_times(costs: CostTable) -> tuple[float, ...]:
    """Returns per GPU count of the table the seconds of an iteration with every layer on it."""
    layers = len(costs.graph.layers)
    return tuple(
        Placement(costs, (option,) * layers, (0,) * layers).iteration_time for option in range(len(costs.gpu_counts))
    )


def data_parallel_time(costs: CostTable) -> float:
    """Returns the seconds of an iteration with every layer on all GPUs: no resharding, every gradient synchronised.

    The last GPU count of the table gives the largest shards that all GPUs have, though it may be a smaller one.
    """
    network = costs.network
    gpus = network.cluster.gpus
    if not costs.overlap:
        sync = sum(network.all_reduce_time(gpus, size) for size in costs.graph.gradient_bytes)
        return float(costs.compute[:, -1].sum()) + sync
    everywhere = replace(costs, gpu_counts=(*costs.gpu_counts[:-1], gpus))
    layers = len(costs.graph.layers)
    return Placement(everywhere, (len(costs.gpu_counts) - 1,) * layers, (0,) * layers).iteration_time


def fastest_data_parallel(costs: CostTable) -> tuple[int, float]:
    """Returns the GPU count of the table on which data parallelism is fastest, the least of equals, and its seconds."""
    layers, best = len(costs.graph.layers), (0, math.inf)
    computing = costs.compute.sum(axis=0)
    for option in reversed(range(len(costs.gpu_counts))):
        if computing[option] <= best[1]:
            seconds = Placement(costs, (option,) * layers, (0,) * layers).iteration_time
            best = min(best, (costs.gpu_counts[option], seconds), key=lambda found: (found[1], found[0]))
    return best

"""What a plan is compared with, priced by the same model."""

from deeppool.costs.table import CostTable


def data_parallel_time(costs: CostTable) -> float:
    """Seconds of an iteration with every layer on all GPUs: no resharding, every gradient synchronised.

    The last GPU count of the table gives the largest shards that all GPUs have, though it may be a smaller one.
    """
    network = costs.network
    gpus = network.cluster.gpus
    sync = sum(network.all_reduce_time(gpus, layer.parameter_bytes) for layer in costs.graph.layers)
    return float(costs.compute[:, -1].sum()) + sync

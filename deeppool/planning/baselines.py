"""What a plan is compared with, priced by the same model."""

from deeppool.costs.table import CostTable
from deeppool.planning.placement import Placement


def data_parallel_time(costs: CostTable, *, overlap_sync: bool = False) -> float:
    """Seconds of an iteration with every layer on all GPUs: no resharding, every gradient synchronised."""
    if overlap_sync:
        layers = len(costs.graph.layers)
        everywhere = Placement(costs, (len(costs.gpu_counts) - 1,) * layers, (0,) * layers, overlap_sync=True)
        return everywhere.schedule.iteration_time
    return float((costs.compute + costs.sync)[:, -1].sum())

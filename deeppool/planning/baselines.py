"""What a plan is compared with, priced by the same model."""

from deeppool.costs.table import CostTable


def data_parallel_time(costs: CostTable) -> float:
    """Seconds of an iteration with every layer on all GPUs: no resharding, every gradient synchronised."""
    return float((costs.compute + costs.sync)[:, -1].sum())

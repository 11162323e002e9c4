"""Duration of a forward or backward pass when layers run on given GPUs.

Forward, a series runs its layers one after another. Between a fork and its join, branches that share a GPU run one
after another, groups of branches on different GPUs run side by side, and the join waits for the last of them.
Backward is the same in the other direction. Each layer takes its own time wherever it runs.
"""

from collections.abc import Callable

from deeppool.graph.series_parallel import NonSeriesParallel, ParallelBlock, Series
from deeppool.planning.evaluate.gpu_sets import Gpus, concurrent_branches


def pass_duration(
    part: Series | ParallelBlock | NonSeriesParallel | None, gpus: Gpus, seconds: Callable[[int], float]
) -> float:
    """Returns the seconds of one pass through a part of the model.

    Args:
        part: part of the tree that ``decompose`` returns.
        gpus: per layer its GPUs; branches on different GPUs run side by side.
        seconds: seconds of each layer in this pass.
    """
    if part is None:
        return 0.0
    if isinstance(part, NonSeriesParallel):
        return sum(map(seconds, part.layers))
    if isinstance(part, ParallelBlock):
        return max(
            sum(pass_duration(part.branches[position], gpus, seconds) for position in group)
            for group in concurrent_branches(part, gpus)
        )
    between = sum(pass_duration(block, gpus, seconds) for block in part.blocks)
    return between + sum(map(seconds, part.layers)) + pass_duration(part.tail, gpus, seconds)

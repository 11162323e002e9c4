"""Cost of other GPU counts for one layer of a plan."""

import math

from deeppool.costs.amplification import TOLERANCE, amplification
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.layer_assignment import WHOLE_ITERATION, AlternativeCost


def alternative_costs(
    placement: Placement, index: int, limit: float | None, spare_gpu_seconds: float = math.inf
) -> tuple[AlternativeCost, ...]:
    """Returns the effect on the iteration of each other GPU count of one layer, all other layers unchanged.

    Counts for which the layer would need GPUs that something else uses at the same time are left out.

    Args:
        placement: the plan.
        index: the layer.
        limit: limit on the amplification of each layer.
        spare_gpu_seconds: GPU-seconds that a limit on the whole iteration leaves.
    """
    costs = placement.costs
    touched = (index, *placement.readers[index])

    def amplifications(where: Placement) -> dict[int, float]:
        return {i: amplification(where.time(i), where.gpu_count(i), float(costs.compute[i, 0])) for i in touched}

    found = []
    for option, count in enumerate(costs.gpu_counts):
        if option == placement.options[index] or count > placement.free_widths[index]:
            continue
        other = placement.with_option([index], option)
        after = amplifications(other)
        over = [
            costs.graph.layers[i].name
            for i, value in after.items()
            if limit is not None and value > limit * (1 + TOLERANCE)
        ]
        if placement.gpu_seconds_change(other, touched) > spare_gpu_seconds * (1 + TOLERANCE):
            over.append(WHOLE_ITERATION)
        change, sync = placement.time_change(other, touched), float(costs.sync[index, option])
        found.append(AlternativeCost(count, change, after[index], tuple(over), other.incoming(index), sync))
    return tuple(found)

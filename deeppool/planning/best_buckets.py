"""Size of the gradient buckets that suits a model and a network.

Large buckets pay latency less often, small ones start early, so the best size is one for the plan that is searched,
which is not known yet. Two that are near to it, or beside it, are timed in each size: data parallelism, and the plan of
the paper's model, in which all-reduces count in full and nothing overlaps; of few GPU counts it is found in no time.
"""

from dataclasses import replace

from deeppool.collectives.buckets import SEARCHED_BUCKETS
from deeppool.costs.table import CostTable
from deeppool.planning.evaluate.placement import Placement, data_parallel
from deeppool.planning.search.search import search

SAME_TIME = 1.01
"""Times within this factor are equal, and the larger buckets are taken: they have fewer calls, whose cost on the host
is not priced, and plans of more GPUs than these two pay more latency."""


def with_best_buckets(costs: CostTable) -> CostTable:
    """Returns the costs in buckets of the searched size in which the faster of the two plans is fastest."""
    if not costs.overlap:
        return costs
    sizes = [replace(costs, buckets=buckets) for buckets in SEARCHED_BUCKETS]
    uniform = [data_parallel(sizes[0], option) for option in range(len(costs.gpu_counts))]
    fastest = min(range(len(uniform)), key=lambda option: uniform[option].iteration_time)
    few = sorted({0, fastest, len(uniform) - 1})
    found = search(replace(costs.at(few), overlap=False), None, proving=False)
    burst = replace(uniform[0], options=tuple(few[choice] for choice in found.choices), starts=found.starts)
    times = [min(_seconds(plan, one) for plan in (uniform[fastest], burst)) for one in sizes]
    return next(one for one, seconds in zip(sizes, times, strict=True) if seconds <= SAME_TIME * min(times))


def _seconds(plan: Placement, costs: CostTable) -> float:
    return replace(plan, costs=costs).iteration_time

"""Size of the gradient buckets that suits a model and a network.

Large buckets pay latency less often, small ones start early, so the best size is one for the plan that is searched,
which is not known yet. Two that are near to it, or beside it, are timed in each size: data parallelism on the GPUs on
which it is fastest, and the plan of the paper's model, in which all-reduces count in full and nothing overlaps; of few
GPU counts it is found in no time. The faster one counts, and data parallelism on all GPUs a little: what is fastest on
one GPU sums nothing, and is as fast in every size.

Where the plan that is found is faster in another size, as one may be whose branches share parameters, the search for it
is repeated in that size.
"""

from dataclasses import replace

from deeppool.collectives.buckets import SEARCHED_BUCKETS
from deeppool.costs.table import CostTable
from deeppool.planning.evaluate.placement import Placement, data_parallel
from deeppool.planning.search.search import search

SAME_TIME = 1.005
"""Times within this factor are equal, and DDP's size is taken, or a larger one: the host's part of a call costs, too,
which is not priced."""
ON_ALL_GPUS = 0.05
"""How much the seconds of data parallelism on all GPUs count."""


def with_best_buckets(costs: CostTable) -> CostTable:
    """Returns the costs in buckets of the searched size that suits plans best."""
    if not costs.overlap:
        return costs
    uniform = [data_parallel(costs, option) for option in range(len(costs.gpu_counts))]
    seconds = [_in_each_size(plan) for plan in uniform]
    fastest = min(range(len(uniform)), key=lambda option: min(seconds[option]))
    few = sorted({0, fastest, len(uniform) - 1})
    found = search(replace(costs.at(few), overlap=False), None, proving=False)
    burst = replace(uniform[0], options=tuple(few[choice] for choice in found.choices), starts=found.starts)
    best = (min(times) for times in zip(*seconds, _in_each_size(burst), strict=True))
    counted = [time + ON_ALL_GPUS * on_all for time, on_all in zip(best, seconds[-1], strict=True)]
    chosen = next(position for position, time in enumerate(counted) if time <= SAME_TIME * min(counted))
    return replace(costs, buckets=SEARCHED_BUCKETS[chosen])


def with_buckets_of(plan: Placement) -> CostTable:
    """Returns the costs of a plan in buckets of the searched size in which it is fastest; in its own if as fast."""
    if not plan.costs.overlap:
        return plan.costs
    seconds = _in_each_size(plan)
    least = min(seconds)
    if plan.iteration_time <= SAME_TIME * least:
        return plan.costs
    return replace(plan.costs, buckets=SEARCHED_BUCKETS[seconds.index(least)])


def _in_each_size(plan: Placement) -> list[float]:
    """Returns the seconds of an iteration in the buckets of each searched size."""
    return [plan.with_buckets(buckets).iteration_time for buckets in SEARCHED_BUCKETS]

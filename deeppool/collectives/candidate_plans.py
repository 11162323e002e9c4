"""Plans of transfers that are tried, as predictions from measured prices may miss.

The latency of a small all-reduce differs by an order of magnitude between measurements of one network
(benchmarks/network), and both bounds of a batch follow from it. So batches are planned for the latency as priced, for a
sixteenth of it and for sixteen times as much, which bounds a batch to the best size, a quarter of it and four times
it; whole and in halves, by the patterns of the least prices. One plan more sums all by the library, in case the prices
of patterns are wrong.
"""

from collections.abc import Sequence

from deeppool.collectives.batching import Gradient
from deeppool.collectives.plan_transfers import PriceAllReduce, plan_alike, plan_transfers, predicted_fastest
from deeppool.records.transfer_plan import PartTimes, TransferPlan

LATENCY_FACTORS = (1.0, 1 / 16, 16.0)


def candidate_plans(
    parts: Sequence[PartTimes],
    gradients: Sequence[Gradient],
    price: PriceAllReduce,
    size: float | None = None,
    *,
    library: PriceAllReduce,
    halves: PriceAllReduce | None = None,
    error: float = 0.0,
) -> list[TransferPlan]:
    """Returns up to seven different plans; first the one of :func:`plan_transfers`, then by predicted time.

    Args:
        parts: as for :func:`deeppool.collectives.plan_transfers.plan_transfers`, and so the others.
        gradients: those that two or more ranks sum.
        price: chooses and prices the pattern of an all-reduce.
        size: bytes that gradients together do not exceed.
        library: prices the library's own all-reduce.
        halves: the same of patterns that have halves.
        error: share by which predictions may differ by chance.
    """
    factors = LATENCY_FACTORS if size is None else (1.0,)
    kinds = [(price, False, factor) for factor in factors]
    if halves is not None:
        kinds += [(halves, True, factor) for factor in factors]
    kinds.append((library, False, 1.0))
    others = [
        predicted_fastest(plan_alike(parts, gradients, chosen, size, split=split, latency_factor=factor), error)
        for chosen, split, factor in kinds
    ]
    first = plan_transfers(parts, gradients, price, size, halves=halves, error=error)
    ordered = [first, *sorted(others, key=lambda plan: plan.iteration_time)]
    different: dict[object, TransferPlan] = {}
    for plan in ordered:
        different.setdefault(tuple((each.gradients, each.pattern) for each in plan.transfers), plan)
    return list(different.values())

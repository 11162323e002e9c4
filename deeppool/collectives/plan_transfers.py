"""Plans the transfers of an iteration: batches, patterns and order, from measured compute and a priced network."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from deeppool.collectives.batching import BatchBounds, Gradient, batch_gradients, bounds_of_batches
from deeppool.collectives.ordering import SentTransfer, TransferRequest, order_transfers
from deeppool.collectives.patterns import HALVES
from deeppool.records.transfer_plan import PartTimes, PlannedTransfer, TransferPlan

MEASURED_ERROR = 0.05
"""Share by which iterations may differ by chance when measured transfers predict them (benchmarks/network)."""
PriceAllReduce = Callable[[int, int], tuple[str, float]]
"""Returns the pattern of an all-reduce over some ranks and bytes, and its seconds."""


@dataclass(frozen=True, slots=True)
class PricedBatch:
    """Gradients that travel together, by which pattern, and which part of the model waits for them."""

    gradients: tuple[Gradient, ...]
    pattern: str
    seconds: float
    ready: float
    """When it can start, in seconds from the start of the backward pass."""
    waiting_part: int
    """First part whose forward waits for it."""


def plan_transfers(
    parts: Sequence[PartTimes],
    gradients: Sequence[Gradient],
    price: PriceAllReduce,
    size: float | None = None,
    *,
    halves: PriceAllReduce | None = None,
    error: float = 0.0,
) -> TransferPlan:
    """Plans the transfers of an iteration: the fastest of up to four plans by prediction.

    Batches are those of :func:`deeppool.collectives.batching.batch_gradients`; or those that would wait for the network
    anyway travel with the one before them, up to the same size. They are summed whole; or each is sent in two halves,
    the second of which waits for the end of the backward pass: a large gradient, ready early and needed late, then
    delays less what is needed before it.

    Args:
        parts: all parts of the model, in the order of their forwards.
        gradients: those that two or more ranks sum, in the order in which the backward pass completes them.
        price: chooses and prices the pattern of an all-reduce.
        size: bytes that gradients together do not exceed. Default: the bound that follows from the prices.
        halves: the same of patterns that have halves. Default: all batches are summed whole.
        error: share by which predictions may differ by chance. Of plans within it, the one of the fewest transfers is
            returned: each has costs that no price knows.
    """
    whole = plan_alike(parts, gradients, price, size)
    split = [] if halves is None else plan_alike(parts, gradients, halves, size, split=True)
    return predicted_fastest([*whole, *split], error)


def predicted_fastest(plans: Sequence[TransferPlan], error: float) -> TransferPlan:
    """Returns the plan of the fewest transfers of those whose predictions are within an error of the fastest."""
    fastest = min(plan.iteration_time for plan in plans)
    alike = [plan for plan in plans if plan.iteration_time <= (1 + error) * fastest]
    return min(alike, key=lambda plan: (len(plan.transfers), plan.iteration_time))


def plan_alike(
    parts: Sequence[PartTimes],
    gradients: Sequence[Gradient],
    price: PriceAllReduce,
    size: float | None = None,
    *,
    split: bool = False,
    latency_factor: float = 1.0,
) -> list[TransferPlan]:
    """Returns two plans of the same bounds: batches that would wait travel with the one before them, or by themselves.

    Args:
        parts: as for :func:`plan_transfers`, and so ``gradients`` and ``size``.
        gradients: those that are summed.
        price: chooses and prices the pattern of an all-reduce.
        size: bytes that gradients together do not exceed.
        split: whether each batch is sent in two halves.
        latency_factor: multiplies the latency from which the bounds follow.
    """
    bounds = {
        ranks: bound if size is None else BatchBounds(size, math.inf)
        for ranks, bound in _bounds(gradients, price, latency_factor).items()
    }
    return [_plan(parts, gradients, price, bounds, merge=merge, split=split) for merge in (True, False)]


def _plan(
    parts: Sequence[PartTimes],
    gradients: Sequence[Gradient],
    price: PriceAllReduce,
    bounds: Mapping[tuple[int, ...], BatchBounds],
    *,
    merge: bool,
    split: bool,
) -> TransferPlan:
    ready = ready_times(parts)
    batches = batch_gradients(gradients, ready, [bounds[gradient.ranks] for gradient in gradients])
    found = [price_batch([gradients[position] for position in batch], ready, price) for batch in batches]
    if merge:
        sizes = {ranks: bound.size for ranks, bound in bounds.items()}
        found = _merge_waiting(parts, found, price, sizes)
    largest = max((bound.size for bound in bounds.values()), default=0.0)
    gap = max((bound.gap for bound in bounds.values()), default=0.0)
    return TransferPlan(
        tuple(parts),
        in_halves(parts, found) if split else send(parts, found, by_need=True),
        None if math.isinf(largest) else largest,
        None if math.isinf(gap) else gap,
    )


def ready_times(parts: Sequence[PartTimes]) -> list[float]:
    """Returns when the backward of each part ends, in seconds from the start of the backward pass."""
    return [*reversed([*itertools.accumulate(part.backward for part in reversed(parts))])]


def price_batch(members: Sequence[Gradient], ready: Sequence[float], price: PriceAllReduce) -> PricedBatch:
    """Returns a batch that is sent once all its gradients are ready, and needed by the first part that uses one."""
    pattern, seconds = price(len(members[0].ranks), sum(each.size for each in members))
    # The part whose backward is last is the one whose forward is first: it completes a batch, and needs it.
    part = min(each.part for each in members)
    return PricedBatch(tuple(members), pattern, seconds, ready[part], part)


def send(parts: Sequence[PartTimes], batches: Sequence[PricedBatch], *, by_need: bool) -> tuple[PlannedTransfer, ...]:
    """Returns the transfers of batches in the order in which they are sent.

    Args:
        parts: all parts of the model, in the order of their forwards.
        batches: what is sent, in the order in which it becomes ready.
        by_need: whether of those that are ready the one that is needed first is sent first, or that which was ready
            first.
    """
    forward = [*itertools.accumulate((part.forward for part in parts), initial=ready_times(parts)[0])]
    return tuple(
        PlannedTransfer(
            gradients=tuple(gradient.name for gradient in batch.gradients),
            size=sum(gradient.size for gradient in batch.gradients),
            ranks=batch.gradients[0].ranks,
            pattern=batch.pattern,
            part=batch.waiting_part,
            ready=batch.ready,
            sent=sent.start,
            done=sent.end,
            needed=forward[batch.waiting_part],
        )
        for sent in _in_order(batches, by_need=by_need)
        for batch in [batches[sent.request]]
    )


def _in_order(batches: Sequence[PricedBatch], *, by_need: bool) -> list[SentTransfer]:
    return order_transfers(
        [
            TransferRequest(
                each.ready, each.seconds, each.waiting_part if by_need else position, each.gradients[0].ranks
            )
            for position, each in enumerate(batches)
        ]
    )


def _merge_waiting(
    parts: Sequence[PartTimes],
    batches: Sequence[PricedBatch],
    price: PriceAllReduce,
    sizes: Mapping[tuple[int, ...], float],
) -> list[PricedBatch]:
    """Returns batches of which none is ready when the one before it is sent, unless both together are too large."""
    ready, merged = ready_times(parts), list(batches)
    while True:
        joined: list[list[PricedBatch]] = []
        begun = 0.0
        for sent in _in_order(merged, by_need=True):
            batch = merged[sent.request]
            if joined and len(joined[-1]) == 1 and _may_join(joined[-1][0], batch, begun, sizes):
                joined[-1].append(batch)
            else:
                joined.append([batch])
                begun = sent.start
        if len(joined) == len(merged):
            return merged
        merged = [
            together[0]
            if len(together) == 1
            else price_batch([each for batch in together for each in batch.gradients], ready, price)
            for together in joined
        ]
        merged.sort(key=lambda batch: batch.ready)


def _may_join(first: PricedBatch, second: PricedBatch, start: float, sizes: Mapping[tuple[int, ...], float]) -> bool:
    """Whether a batch can travel with one that is sent before it, without that one waiting."""
    ours, theirs = first.gradients[0], second.gradients[0]
    together = sum(each.size for batch in (first, second) for each in batch.gradients)
    return (
        (ours.ranks, ours.dtype) == (theirs.ranks, theirs.dtype)
        and second.ready <= start
        and together <= sizes[ours.ranks]
    )


def in_halves(parts: Sequence[PartTimes], batches: Sequence[PricedBatch]) -> tuple[PlannedTransfer, ...]:
    """Returns first halves in the order of readiness, and second ones by need when all first ones have ended."""
    first, second = (
        [replace(each, pattern=HALVES[each.pattern][half], seconds=each.seconds / 2) for each in batches]
        for half in (0, 1)
    )
    sent = send(parts, first, by_need=False)
    start = max([ready_times(parts)[0], *(each.done for each in sent)]) if parts else 0.0
    return (*sent, *send(parts, [replace(each, ready=start) for each in second], by_need=True))


def _bounds(
    gradients: Sequence[Gradient], price: PriceAllReduce, latency_factor: float
) -> dict[tuple[int, ...], BatchBounds]:
    """Returns the bounds for each set of ranks, from the price of one byte and that of all bytes they sum."""
    totals: dict[tuple[int, ...], int] = defaultdict(int)
    for gradient in gradients:
        totals[gradient.ranks] += gradient.size
    bounds = {}
    for ranks, total in totals.items():
        latency, whole = price(len(ranks), 1)[1], price(len(ranks), total)[1]
        bounds[ranks] = bounds_of_batches(latency_factor * latency, max(0.0, whole - latency) / total, total)
    return bounds

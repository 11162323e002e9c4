"""Plans of transfers by the rules of today's frameworks, to compare with: none knows the model or the network.

ddp_transfers     DDP: buckets in the order of backward; the next forward waits for all of them
fused_transfers   Horovod: in every cycle what is ready, fused up to a size; the next forward waits for all of them
dear_transfers    DeAR: buckets whose reduce-scatter is beside backward and whose all-gather is beside the next forward
server_transfers  parameter servers: each gradient by itself, pushed beside backward and pulled beside the next forward
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from deeppool.collectives.batching import Gradient
from deeppool.collectives.buckets import BUCKET_BYTES, Buckets, ddp_buckets
from deeppool.collectives.plan_transfers import PriceAllReduce, PricedBatch, in_halves, price_batch, ready_times, send
from deeppool.records.transfer_plan import PartTimes, PlannedTransfer, TransferPlan

SERVERS, SHARDED, HOROVOD, DDP, TUNED_DDP, FEWER, DEAR, CARAMEL = (
    "parameter server",
    "sharded servers",
    "Horovod",
    "DDP",
    "DDP, best bucket",
    "DDP on fewer ranks",
    "DeAR, best bucket",
    "Caramel",
)
"""Names of methods in comparisons, the plan of this project included."""
FUSION_BYTES, CYCLE = 64 * 2**20, 5e-3
"""Horovod's defaults when the paper was written."""


def ddp_transfers(
    parts: Sequence[PartTimes],
    gradients: Sequence[Gradient],
    price: PriceAllReduce,
    bucket: float = BUCKET_BYTES,
    first: float | None = None,
) -> TransferPlan:
    """Plans the transfers of DistributedDataParallel (Li et al., VLDB 2020).

    Args:
        parts: all parts of the model, in the order of their forwards.
        gradients: of the same ranks, in the order in which the backward pass completes them.
        price: chooses and prices the pattern of an all-reduce.
        bucket: bytes at which a bucket is complete.
        first: bytes at which the first is; None: as DDP has it for buckets of this size.
    """
    ready = ready_times(parts)
    rule = ddp_buckets(math.ceil(bucket))
    if first is not None:
        rule = replace(rule, first=math.ceil(min(first, bucket)))
    found = [price_batch(each, ready, price) for each in _buckets(gradients, rule)]
    return _plan(parts, send(parts, [replace(each, waiting_part=0) for each in found], by_need=False), bucket)


def fused_transfers(
    parts: Sequence[PartTimes],
    gradients: Sequence[Gradient],
    price: PriceAllReduce,
    fusion: float = FUSION_BYTES,
    cycle: float = CYCLE,
) -> TransferPlan:
    """Plans the transfers of Horovod (Sergeev and Del Balso, 2018).

    Args:
        parts: all parts of the model, in the order of their forwards.
        gradients: of the same ranks, in the order in which the backward pass completes them.
        price: chooses and prices the pattern of an all-reduce.
        fusion: bytes that gradients sent together do not exceed.
        cycle: seconds between two looks at what is ready.
    """
    ready = ready_times(parts)
    waiting, batches, now = list(gradients), list[PricedBatch](), 0.0
    while waiting:
        now += cycle
        found = [each for each in waiting if ready[each.part] <= now]
        waiting = waiting[len(found) :]
        for members in _fused(found, fusion):
            batch = replace(price_batch(members, ready, price), ready=now, waiting_part=0)
            batches.append(batch)
            # The thread that looks is the one that sends.
            now += batch.seconds
    return _plan(parts, send(parts, batches, by_need=False), fusion)


def dear_transfers(
    parts: Sequence[PartTimes], gradients: Sequence[Gradient], price: PriceAllReduce, bucket: float = BUCKET_BYTES
) -> TransferPlan:
    """Plans the transfers of DeAR (Zhang et al., arXiv 2302.12445): two transfers of each bucket, halves of a ring.

    Args:
        parts: all parts of the model, in the order of their forwards.
        gradients: of the same ranks, in the order in which the backward pass completes them.
        price: prices a ring.
        bucket: bytes at which a bucket is complete.
    """
    ready = ready_times(parts)
    rule = Buckets(alone=None, size=math.ceil(bucket))
    batches = [price_batch(members, ready, price) for members in _buckets(gradients, rule)]
    return _plan(parts, in_halves(parts, batches), bucket)


def server_transfers(parts: Sequence[PartTimes], gradients: Sequence[Gradient], price: PriceAllReduce) -> TransferPlan:
    """Plans two transfers of each gradient by itself: to the server, and once all gradients are summed, the sum back.

    Workers begin the next iteration together, and read parameters in the order of need: the best order for them, where
    TensorFlow's is arbitrary.

    Args:
        parts: all parts of the model, in the order of their forwards.
        gradients: in the order in which the backward pass completes them. A gradient whose server alone is named as its
            ranks waits for this server's other transfers only.
        price: prices a parameter server.
    """
    ready = ready_times(parts)
    batches = [price_batch([each], ready, price) for each in gradients]
    return _plan(parts, in_halves(parts, batches), 0.0)


def _buckets(gradients: Sequence[Gradient], rule: Buckets) -> list[list[Gradient]]:
    found = rule.group([each.size for each in gradients], [each.dtype for each in gradients])
    return [[gradients[position] for position in bucket] for bucket in found]


def _fused(gradients: Sequence[Gradient], size: float) -> list[list[Gradient]]:
    """Puts adjacent ones of a type together up to a size, as Horovod's coordinator does; a larger one is alone."""
    found: list[list[Gradient]] = []
    for gradient in gradients:
        together = [*found[-1], gradient] if found else []
        if together and gradient.dtype == together[0].dtype and sum(each.size for each in together) <= size:
            found[-1].append(gradient)
        else:
            found.append([gradient])
    return found


def _plan(parts: Sequence[PartTimes], transfers: tuple[PlannedTransfer, ...], size: float) -> TransferPlan:
    return TransferPlan(tuple(parts), transfers, size, None)

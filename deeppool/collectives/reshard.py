"""The transfers that take a batch from one layout to another; a GPU keeps the samples it has already."""

from dataclasses import dataclass
from functools import lru_cache

from deeppool.collectives.layout import Layout


@dataclass(frozen=True, slots=True)
class Transfer:
    """Samples ``start`` to ``stop`` of the global batch go from one GPU to another."""

    source: int
    destination: int
    start: int
    stop: int


@lru_cache(maxsize=4096)
def reshard(source: Layout, destination: Layout) -> tuple[Transfer, ...]:
    """All transfers, in the order in which every rank posts them: by sample, so by sender and receiver."""
    transfers = []
    for receiver in destination.gpus:
        wanted = destination.shard(receiver)
        for sender in source.gpus:
            held = source.shard(sender)
            start, stop = max(wanted.start, held.start), min(wanted.stop, held.stop)
            if sender != receiver and start < stop:
                transfers.append(Transfer(sender, receiver, start, stop))
    return tuple(transfers)


@lru_cache(maxsize=4096)
def busiest_samples(source: Layout, destination: Layout) -> int:
    """Samples through the busiest GPU port, sent or received: what the transfers' time follows.

    Equal to the largest sum over :func:`reshard`'s transfers of one GPU in one direction, without listing them.
    """
    if source == destination:
        return 0
    busiest = 0
    for gpu in {*source.gpus, *destination.gpus}:
        had, wants = source.shard(gpu), destination.shard(gpu)
        kept = max(0, min(had.stop, wants.stop) - max(had.start, wants.start))
        busiest = max(busiest, len(had) - kept, len(wants) - kept)
    return busiest

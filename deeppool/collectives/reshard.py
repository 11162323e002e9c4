"""The transfers that take a batch from one layout to another; a GPU keeps the samples it has already."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from deeppool.collectives.layout import Layout
from deeppool.collectives.schedule import Transfer


@lru_cache(maxsize=4096)
def reshard(source: Layout, destination: Layout) -> tuple[Transfer, ...]:
    """Returns all transfers, with samples as chunks.

    They are in the order in which every rank posts them: by sample, so by sender and receiver.
    """
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
    """Returns the samples through the busiest GPU port, sent or received, which determine the transfers' time.

    Equal to the largest sum over :func:`reshard`'s transfers of one GPU in one direction, without listing them.
    """
    if source == destination:
        return 0
    _, mine, theirs = np.intersect1d(source.gpus, destination.gpus, assume_unique=True, return_indices=True)
    return _busiest(len(source.gpus), len(destination.gpus), source.batch, mine, theirs)


@lru_cache(maxsize=4096)
def busiest_samples_of_first(source: int, destination: int, batch: int) -> int:
    """Returns what :func:`busiest_samples` does, from the first ``source`` GPUs to the first ``destination``."""
    both = np.arange(min(source, destination))
    return 0 if source == destination else _busiest(source, destination, batch, both, both)


def _busiest(source: int, destination: int, batch: int, mine: NDArray[np.intp], theirs: NDArray[np.intp]) -> int:
    """Returns the same for numbers of GPUs; those that hold samples before and after have these positions there."""
    had, wants = _bounds(source, batch), _bounds(destination, batch)
    overlap = np.minimum(had[1][mine], wants[1][theirs]) - np.maximum(had[0][mine], wants[0][theirs])
    sent, received = had[1] - had[0], wants[1] - wants[0]
    sent[mine] -= np.maximum(overlap, 0)
    received[theirs] -= np.maximum(overlap, 0)
    return int(max(sent.max(), received.max()))


def _bounds(gpus: int, batch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns, per GPU of a layout, the first sample of its shard and the one after the last."""
    size, larger = divmod(batch, gpus)
    positions = np.arange(gpus + 1)
    edges = positions * size + np.minimum(positions, larger)
    return edges[:-1], edges[1:]

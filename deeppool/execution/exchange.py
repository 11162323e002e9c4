"""Performs the transfers of a reshard, forward for activations and backward for their gradients."""

import torch
import torch.distributed as dist

from deeppool.collectives.layout import Layout
from deeppool.collectives.reshard import reshard


class Exchange:
    """One rank's side of all reshards of an iteration.

    Every rank enters the same reshards in the same order. Receives are posted before sends, because gloo
    queues a receiver's readiness behind outgoing payload; sends are awaited at the end of the iteration.
    """

    def __init__(self, rank: int) -> None:
        """Starts with nothing under way."""
        self.rank = rank
        self._sending: list[tuple[dist.Work, torch.Tensor]] = []

    def move(
        self, shard: torch.Tensor | None, source: Layout, destination: Layout, like: torch.Tensor
    ) -> torch.Tensor | None:
        """This rank's shard in the destination layout; None where it has none.

        Args:
            shard: its shard in the source layout; None where it has none.
            source: where the samples are.
            destination: where they are wanted.
            like: any tensor of the value's dtype, device and shape after the first dimension.
        """
        had, wants = source.shard(self.rank), destination.shard(self.rank)
        result = like.new_empty((len(wants), *like.shape[1:])) if len(wants) else None
        mine = [t for t in reshard(source, destination) if self.rank in (t.source, t.destination)]
        receiving = []
        for transfer in mine:
            if transfer.destination == self.rank:
                assert result is not None
                rows = result[transfer.start - wants.start : transfer.stop - wants.start]
                receiving.append(dist.irecv(rows, transfer.source))
        for transfer in mine:
            if transfer.source == self.rank:
                assert shard is not None
                rows = shard[transfer.start - had.start : transfer.stop - had.start].contiguous()
                self._sending.append((_started(dist.isend(rows, transfer.destination)), rows))
        start, stop = max(had.start, wants.start), min(had.stop, wants.stop)
        if result is not None and shard is not None and start < stop:
            result[start - wants.start : stop - wants.start] = shard[start - had.start : stop - had.start]
        for work in receiving:
            _started(work).wait()
        return result

    def finish(self) -> None:
        """Waits until everything sent has left."""
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()


def _started(work: dist.Work | None) -> dist.Work:
    """torch returns None only to ranks outside the group, which is never one of ours."""
    assert work is not None
    return work

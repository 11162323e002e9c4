"""Performs the transfers of reshards, forward for activations and backward for their gradients."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from deeppool.collectives.layout import Layout
from deeppool.collectives.reshard import Transfer, reshard


@dataclass(frozen=True, slots=True)
class Move:
    """One value that changes its layout, seen from one rank."""

    shard: torch.Tensor | None
    """The rank's, in the source layout; None where it has none."""
    source: Layout
    destination: Layout
    like: torch.Tensor
    """Any tensor of the value's dtype, device and shape after the first dimension."""


class Exchange:
    """One rank's side of all reshards of an iteration.

    Every rank enters the same reshards in the same order. Receives are posted before sends, because gloo
    queues a receiver's readiness behind outgoing payload; sends are awaited at the end of the iteration.
    """

    def __init__(self, rank: int) -> None:
        """Starts with nothing under way."""
        self.rank = rank
        self._sending: list[tuple[dist.Work, list[torch.Tensor]]] = []

    def move(self, moves: Sequence[Move]) -> list[torch.Tensor | None]:
        """This rank's shards in the destination layouts, None where it has none; all values travel as one batch."""
        results = [self._room(move) for move in moves]
        # Per pair of ranks, both sides list the transfers in the same order: that is how they find each other.
        receiving = [
            dist.P2POp(dist.irecv, _rows(result, move.destination.shard(self.rank), transfer), transfer.source)
            for move, result in zip(moves, results, strict=True)
            for transfer in self._mine(move)
            if transfer.destination == self.rank
        ]
        sending = [
            dist.P2POp(
                dist.isend, _rows(move.shard, move.source.shard(self.rank), transfer).contiguous(), transfer.destination
            )
            for move in moves
            for transfer in self._mine(move)
            if transfer.source == self.rank
        ]
        started = dist.batch_isend_irecv(receiving + sending) if receiving or sending else []
        for move, result in zip(moves, results, strict=True):
            self._keep(move, result)
        # NCCL answers with one work for the whole batch, which then stands for the receives.
        received = started[: len(receiving)]
        for work in received:
            work.wait()
        buffers = [operation.tensor for operation in sending]
        self._sending += [(work, buffers) for work in started[len(received) :]]
        return results

    def finish(self) -> None:
        """Waits until everything sent has left."""
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()

    def _mine(self, move: Move) -> Iterator[Transfer]:
        for transfer in reshard(move.source, move.destination):
            if self.rank in (transfer.source, transfer.destination):
                yield transfer

    def _room(self, move: Move) -> torch.Tensor | None:
        """For the shard in the destination layout; the samples themselves where the rank has all of them."""
        had, wants = move.source.shard(self.rank), move.destination.shard(self.rank)
        if not len(wants):
            return None
        if move.shard is not None and had.start <= wants.start and wants.stop <= had.stop:
            return move.shard[wants.start - had.start : wants.stop - had.start]
        return move.like.new_empty((len(wants), *move.like.shape[1:]))

    def _keep(self, move: Move, result: torch.Tensor | None) -> None:
        """Copies the samples that stay, unless they are where they were."""
        had, wants = move.source.shard(self.rank), move.destination.shard(self.rank)
        start, stop = max(had.start, wants.start), min(had.stop, wants.stop)
        if result is not None and move.shard is not None and start < stop < start + len(wants):
            result[start - wants.start : stop - wants.start] = move.shard[start - had.start : stop - had.start]


def _rows(tensor: torch.Tensor | None, samples: range, transfer: Transfer) -> torch.Tensor:
    """Those of a transfer, in a shard that holds ``samples``."""
    assert tensor is not None
    return tensor[transfer.start - samples.start : transfer.stop - samples.start]

"""Performs the transfers of reshards, forward for activations and backward for their gradients."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from deeppool.collectives.layout import Layout
from deeppool.collectives.reshard import reshard
from deeppool.collectives.schedule import Transfer
from deeppool.device.transfer import PendingWork
from deeppool.execution.communicator import Communicator, P2PBuffer


@dataclass(frozen=True, slots=True)
class SampleCopy:
    """A value that changes its layout, as one rank holds it."""

    shard: torch.Tensor | None
    """The rank's shard in the source layout; None where it has none."""
    source: Layout
    destination: Layout
    like: torch.Tensor
    """Any tensor with the value's dtype, device and shape after the first dimension."""


class PendingTensor:
    """A rank's shard of a value in its new layout, whose transfers may be in progress."""

    def __init__(self, shard: torch.Tensor | None, works: Sequence[PendingWork] = ()) -> None:
        """Takes the shard, None if the rank has none, and the transfers that complete it."""
        self._shard, self._works = shard, works

    @property
    def is_pending(self) -> bool:
        """Whether :meth:`wait` has transfers to wait for."""
        return bool(self._works)

    def wait(self) -> torch.Tensor:
        """Returns the complete shard."""
        assert self._shard is not None
        for work in self._works:
            work.wait()
        return self._shard


class Exchange:
    """One rank's side of all reshards of an iteration.

    Every rank starts the same reshards in the same order; sends are awaited at the end of the iteration.
    """

    def __init__(self, communicator: Communicator, device: torch.device) -> None:
        """Starts without transfers in progress."""
        self._communicator, self.rank, self.device = communicator, communicator.rank, device
        self._pending_sends: list[tuple[PendingWork, list[P2PBuffer]]] = []

    def start(self, moves: Sequence[SampleCopy]) -> list[PendingTensor]:
        """Starts to transfer all values as one batch; returns this rank's shards in the destination layouts."""
        results = [self._allocate(move) for move in moves]
        # Messages of a pair of ranks are matched by order: both sides list the transfers in the same one.
        receiving = [
            [
                (_rows(result, move.destination.shard(self.rank), transfer), transfer.source)
                for transfer in self._own_transfers(move)
                if transfer.destination == self.rank
            ]
            for move, result in zip(moves, results, strict=True)
        ]
        sending = [
            (_rows(move.shard, move.source.shard(self.rank), transfer).contiguous(), transfer.destination)
            for move in moves
            for transfer in self._own_transfers(move)
            if transfer.source == self.rank
        ]
        posted = list(itertools.chain.from_iterable(receiving))
        works = self._communicator.exchange(posted, sending) if posted or sending else []
        for move, result in zip(moves, results, strict=True):
            self._copy_kept(move, result)
        if len(works) < len(posted) + len(sending):
            # One work for the whole batch.
            self._pending_sends += [(work, sending) for work in works]
            return [PendingTensor(result, works if own else ()) for result, own in zip(results, receiving, strict=True)]
        pending = iter(works)
        arrivals = [
            PendingTensor(result, list(itertools.islice(pending, len(own))))
            for result, own in zip(results, receiving, strict=True)
        ]
        self._pending_sends += [(work, sending) for work in pending]
        return arrivals

    def finish(self) -> None:
        """Waits until all sends are done."""
        for work, _ in self._pending_sends:
            work.wait()
        self._pending_sends.clear()

    def _own_transfers(self, move: SampleCopy) -> Iterator[Transfer]:
        for transfer in reshard(move.source, move.destination):
            if self.rank in (transfer.source, transfer.destination):
                yield transfer

    def _allocate(self, move: SampleCopy) -> torch.Tensor | None:
        """Returns memory for the destination shard; a view of the source shard if that has all samples."""
        had, wants = move.source.shard(self.rank), move.destination.shard(self.rank)
        if not len(wants):
            return None
        if move.shard is not None and had.start <= wants.start and wants.stop <= had.stop:
            return move.shard[wants.start - had.start : wants.stop - had.start]
        return move.like.new_empty((len(wants), *move.like.shape[1:]))

    def _copy_kept(self, move: SampleCopy, result: torch.Tensor | None) -> None:
        """Copies the samples that stay on this rank, unless the result is a view of them."""
        had, wants = move.source.shard(self.rank), move.destination.shard(self.rank)
        start, stop = max(had.start, wants.start), min(had.stop, wants.stop)
        if result is not None and move.shard is not None and start < stop < start + len(wants):
            result[start - wants.start : stop - wants.start] = move.shard[start - had.start : stop - had.start]


def _rows(tensor: torch.Tensor | None, samples: range, transfer: Transfer) -> torch.Tensor:
    """Returns the rows of a transfer in a shard that holds ``samples``."""
    assert tensor is not None
    return tensor[transfer.start - samples.start : transfer.stop - samples.start]

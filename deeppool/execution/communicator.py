"""Communication between the ranks of a training: the part of torch.distributed that a trainer uses.

ProcessGroup          all ranks of torch.distributed
SingleRank            a training of one rank
EmulatedCommunicator  ranks that do not exist (:mod:`deeppool.execution.emulated_rank`)
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from deeppool.base.timeline import SpanKind
from deeppool.device.protocol import Device

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Longest wait in a collective. The launcher detects a hung rank much sooner."""

P2PBuffer = tuple[torch.Tensor, int]
"""Memory of a point-to-point transfer, and the rank that it comes from or goes to."""


class PendingWork(Protocol):
    """Communication in progress."""

    def wait(self) -> object:
        """Returns when it is done; on CUDA, when it is ordered before later work on the current stream."""


class Group(Protocol):
    """Two or more ranks; all of them make the same calls in the same order."""

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """Starts to replace each rank's tensor by the sum over all ranks."""

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Returns the tensors of all ranks, of equal shapes, in rank order."""

    def close(self) -> None:
        """Ends the group."""


class Communicator(Protocol):
    """All ranks of a training. Those that exist make the same calls in the same order."""

    rank: int
    """Rank of this process."""
    ranks: int

    def group(self, ranks: Sequence[int]) -> Group:
        """Creates a group of two or more ranks; ranks outside it call this too."""

    def exchange(self, receiving: Sequence[P2PBuffer], sending: Sequence[P2PBuffer]) -> Sequence[PendingWork]:
        """Starts transfers between pairs of ranks; both sides list those of a pair in the same order.

        Args:
            receiving: contiguous tensors to fill, and their sources.
            sending: contiguous tensors, unchanged until they are sent, and their destinations.

        Returns:
            One work for each, in their order, or one for all of them.
        """

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """Starts to replace each rank's tensor by the sum over all ranks."""

    def barrier(self) -> None:
        """Returns when all ranks have called it."""

    def begin(self) -> None:
        """Marks the start of an iteration."""

    def await_scheduled_start(self, kind: SpanKind, stage: int) -> None:
        """Waits until this rank may compute a stage whose inputs have arrived."""

    def enter(self, kind: SpanKind, stage: int) -> None:
        """Marks the start of a span."""

    def leave(self, kind: SpanKind, stage: int) -> float:
        """Marks the end of a span; returns when its last rank had started it (``time.perf_counter``), 0 if unknown."""

    def end(self) -> None:
        """Marks the end of the iteration on this rank."""

    def close(self) -> None:
        """Ends communication; all ranks call it."""


class _WithoutReplay:
    """No-op span marks: ranks that exist synchronise by their messages."""

    def begin(self) -> None:
        """Does nothing."""

    def await_scheduled_start(self, kind: SpanKind, stage: int) -> None:
        """Returns at once: the inputs have arrived."""

    def enter(self, kind: SpanKind, stage: int) -> None:
        """Does nothing."""

    def leave(self, kind: SpanKind, stage: int) -> float:
        """Returns 0: only the launcher has the spans of all ranks."""
        return 0.0

    def end(self) -> None:
        """Does nothing."""


class ProcessGroup(_WithoutReplay):
    """All ranks of torch.distributed, which must be initialised."""

    def __init__(self) -> None:
        """Reads rank and world size."""
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def group(self, ranks: Sequence[int]) -> "_SubGroup":
        """Creates a group; see :meth:`Communicator.group`."""
        return _SubGroup(ranks)

    def exchange(self, receiving: Sequence[P2PBuffer], sending: Sequence[P2PBuffer]) -> Sequence[PendingWork]:
        """Starts transfers; posts receives first, as gloo queues a receiver's readiness behind payload."""
        operations = [dist.P2POp(dist.irecv, tensor, source) for tensor, source in receiving]
        operations += [dist.P2POp(dist.isend, tensor, destination) for tensor, destination in sending]
        # NCCL returns one work for the whole batch.
        return list(dist.batch_isend_irecv(operations)) if operations else []

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """Starts an all-reduce; see :meth:`Communicator.all_reduce`."""
        return _sum(tensor, None)

    def barrier(self) -> None:
        """Waits for all ranks; see :meth:`Communicator.barrier`."""
        dist.barrier()

    def close(self) -> None:
        """Ends torch.distributed."""
        dist.destroy_process_group()


def join_process_group(device: Device, rank: int, ranks: int, rendezvous: str, interface: str | None) -> Communicator:
    """Initialises torch.distributed with all ranks.

    Args:
        device: device of this rank.
        rank: rank of this process.
        ranks: world size.
        rendezvous: ``init_method`` of torch.distributed.
        interface: network interface for gloo; None: its default.
    """
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    with device.unbound():
        dist.init_process_group(
            device.backend, init_method=rendezvous, rank=rank, world_size=ranks, timeout=COLLECTIVE_TIMEOUT
        )
    return ProcessGroup()


class _SubGroup:
    """Some ranks of torch.distributed."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = len(ranks)
        self._group: Any = dist.new_group(list(ranks))

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        return _sum(tensor, self._group)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self._ranks)]
        dist.all_gather(gathered, tensor, group=self._group)
        return gathered

    def close(self) -> None:
        dist.destroy_process_group(self._group)


def _sum(tensor: torch.Tensor, group: Any) -> PendingWork:
    work: PendingWork | None = dist.all_reduce(tensor, group=group, async_op=True)
    assert work is not None, "torch returns None only to ranks outside the group"
    return work


class CompletedWork:
    """Completed work."""

    def wait(self) -> None:
        """Returns at once."""


class SingleRank(_WithoutReplay):
    """A training of one rank, without torch.distributed."""

    rank, ranks = 0, 1

    def group(self, ranks: Sequence[int]) -> Group:
        """Raises: a single rank has no groups."""
        raise ValueError(f"there are no ranks {list(ranks)} in a training of one rank")

    def exchange(self, receiving: Sequence[P2PBuffer], sending: Sequence[P2PBuffer]) -> Sequence[PendingWork]:
        """Returns no work: no stage runs elsewhere."""
        assert not receiving, "a stage of a training of one rank reads from another rank"
        assert not sending, "a stage of a training of one rank is read on another rank"
        return []

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """Returns completed work: the sum over one rank is its tensor."""
        return CompletedWork()

    def barrier(self) -> None:
        """Returns at once."""

    def close(self) -> None:
        """Does nothing."""

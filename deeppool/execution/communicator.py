"""Communication between the ranks of a training: the part of torch.distributed that a trainer uses.

ProcessGroup          all ranks of torch.distributed
SingleRank            a training of one rank
EmulatedCommunicator  ranks that do not exist (:mod:`deeppool.execution.emulated_rank`)
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from deeppool.collectives.perform.process_group import COLLECTIVE_TIMEOUT, init_process_group, new_group, use_interface
from deeppool.collectives.perform.schedule_group import ScheduleGroup
from deeppool.collectives.schedule import Schedule
from deeppool.device.protocol import Device
from deeppool.device.transfer import PendingWork
from deeppool.processes.meeting_point import interface_towards, join_store

P2PBuffer = tuple[torch.Tensor, int]
"""Memory of a point-to-point transfer, and the rank that it comes from or goes to."""


class Group(Protocol):
    """Two or more ranks; all of them make the same calls in the same order."""

    def all_reduce(self, tensor: torch.Tensor, schedule: Schedule | None = None) -> PendingWork:
        """Starts to replace each rank's tensor by the sum over all ranks; None: by the library's own all-reduce."""

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Returns the tensors of all ranks, of equal shapes, in rank order."""

    def close(self) -> None:
        """Ends the group."""


class Communicator(Protocol):
    """All ranks of a training. Those that exist make the same calls in the same order."""

    rank: int
    """Rank of this process."""
    ranks: int

    def group(self, ranks: Sequence[int], *, schedules: bool = False) -> Group:
        """Creates a group of two or more ranks; ranks outside it call this too.

        Args:
            ranks: ranks of the group, ascending.
            schedules: whether some of its all-reduces are performed by schedules.
        """

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

    def close(self) -> None:
        """Ends communication; all ranks call it."""


class ProcessGroup:
    """All ranks of torch.distributed, which must be initialised."""

    def __init__(self, device: Device) -> None:
        """Reads rank and world size."""
        self._device = device
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def group(self, ranks: Sequence[int], *, schedules: bool = False) -> Group:
        """Creates a group; see :meth:`Communicator.group`."""
        return _SubGroup(self._device, ranks, ScheduleGroup(self._device, ranks) if schedules else None)

    def exchange(self, receiving: Sequence[P2PBuffer], sending: Sequence[P2PBuffer]) -> Sequence[PendingWork]:
        """Starts transfers; posts receives first, as gloo queues a receiver's readiness behind payload."""
        if not receiving and not sending:
            return []
        transfer = self._device.transfer([tensor for tensor, _ in receiving], [tensor for tensor, _ in sending])
        calls = [dist.irecv] * len(receiving) + [dist.isend] * len(sending)
        peers = [peer for _, peer in (*receiving, *sending)]
        operations = list(map(dist.P2POp, calls, (*transfer.received, *transfer.sent), peers))
        # NCCL returns one work for the whole batch.
        return transfer.started(list(dist.batch_isend_irecv(operations)))

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """Starts an all-reduce; see :meth:`Communicator.all_reduce`."""
        return _sum(self._device, tensor, None)

    def barrier(self) -> None:
        """Waits for all ranks; see :meth:`Communicator.barrier`."""
        dist.barrier()

    def close(self) -> None:
        """Ends torch.distributed."""
        dist.destroy_process_group()


def join_process_group(device: Device, rank: int, ranks: int, rendezvous: str, interface: str | None) -> Communicator:
    """Initialises torch.distributed with all ranks.

    Args:
        device: device of this rank, selected.
        rank: rank of this process.
        ranks: world size.
        rendezvous: ``file://`` for ranks on one machine, or ``tcp://`` of a store that the launcher holds.
        interface: network interface (see :func:`use_interface`); None: the one that leads to the rendezvous.
    """
    where: dict[str, Any] = {"init_method": rendezvous}
    if rendezvous.startswith("tcp:"):
        interface = interface or interface_towards(rendezvous)
        where = {"store": join_store(rendezvous, COLLECTIVE_TIMEOUT)}
    if interface is not None:
        use_interface(interface)
    init_process_group(device, **where, rank=rank, world_size=ranks)
    return ProcessGroup(device)


class _SubGroup:
    """Some ranks of torch.distributed."""

    def __init__(self, device: Device, ranks: Sequence[int], schedules: ScheduleGroup | None) -> None:
        self._device = device
        self._ranks, self._schedules = len(ranks), schedules
        self._group: Any = new_group(device, ranks)

    def all_reduce(self, tensor: torch.Tensor, schedule: Schedule | None = None) -> PendingWork:
        if schedule is None:
            return _sum(self._device, tensor, self._group)
        assert self._schedules is not None, "the group was created without schedules"
        transfer = self._device.transfer([tensor], [])
        return transfer.started([self._schedules.all_reduce(transfer.received[0], schedule)])[0]

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self._ranks)]
        transfer = self._device.transfer(gathered, [tensor])
        dist.all_gather(list(transfer.received), transfer.sent[0], group=self._group)
        return gathered

    def close(self) -> None:
        if self._schedules is not None:
            self._schedules.close()
        dist.destroy_process_group(self._group)


def _sum(device: Device, tensor: torch.Tensor, group: Any) -> PendingWork:
    transfer = device.transfer([tensor], [])
    work: PendingWork | None = dist.all_reduce(transfer.received[0], group=group, async_op=True)
    assert work is not None, "torch returns None only to ranks outside the group"
    return transfer.started([work])[0]


class CompletedWork:
    """Completed work."""

    def wait(self) -> None:
        """Returns at once."""


class SingleRank:
    """A training of one rank, without torch.distributed."""

    rank, ranks = 0, 1

    def group(self, ranks: Sequence[int], *, schedules: bool = False) -> Group:
        """Raises: a single rank has no groups."""
        raise ValueError(f"there are no ranks {list(ranks)} in a training of one rank")

    def exchange(self, receiving: Sequence[P2PBuffer], sending: Sequence[P2PBuffer]) -> Sequence[PendingWork]:
        """Returns no work: no stage runs elsewhere."""
        if receiving or sending:
            raise ValueError(
                f"a training of one rank exchanges with ranks {[rank for _, rank in (*receiving, *sending)]}"
            )
        return []

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """Returns completed work: the sum over one rank is its tensor."""
        return CompletedWork()

    def barrier(self) -> None:
        """Returns at once."""

    def close(self) -> None:
        """Does nothing."""

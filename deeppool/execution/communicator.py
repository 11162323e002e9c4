"""The other ranks of a training, as one of them sees them: all that a trainer asks of torch.distributed.

ProcessGroup   real ones, through torch.distributed
Alone          there are none
Emulated       as if there were (see ``emulated``)
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from deeppool.base.timeline import SpanKind

P2PBuffer = tuple[torch.Tensor, int]
"""What goes to, or comes from, a rank."""


class PendingWork(Protocol):
    """Something under way."""

    def wait(self) -> object:
        """Returns when it is done; on CUDA, when what follows on the current stream comes after it."""


class Group(Protocol):
    """Two or more ranks that tell each other; all of them call the same in the same order."""

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """Starts to put the sum over all ranks in the place of each one's tensor."""

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Everyone's tensor, all of one shape, in the order of ranks."""

    def close(self) -> None:
        """Ends the group."""


class Communicator(Protocol):
    """All ranks of a training. Those that are real all call the same in the same order."""

    rank: int
    """This one."""
    ranks: int

    def group(self, ranks: Sequence[int]) -> Group:
        """Of two or more ranks; those outside make it too."""

    def exchange(self, receiving: Sequence[P2PBuffer], sending: Sequence[P2PBuffer]) -> Sequence[PendingWork]:
        """Starts transfers between pairs of ranks; both sides list those of a pair in the same order.

        Args:
            receiving: contiguous memory for what comes, and from whom.
            sending: contiguous tensors, which stay as they are until they have left, and to whom.

        Returns:
            One work for each, in their order, or one for all of them.
        """

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """Starts to put the sum over all ranks in the place of each one's tensor."""

    def barrier(self) -> None:
        """Returns when all ranks have called it."""

    def begin(self) -> None:
        """An iteration begins."""

    def await_scheduled_start(self, kind: SpanKind, stage: int) -> None:
        """Returns when this rank may compute a stage, whose inputs have arrived."""

    def enter(self, kind: SpanKind, stage: int) -> None:
        """This rank begins something, as its spans say."""

    def leave(self, kind: SpanKind, stage: int) -> float:
        """It has ended; returns when the last rank that takes part had begun, on ``time.perf_counter``; 0: unknown."""

    def end(self) -> None:
        """The iteration has ended on this rank."""

    def close(self) -> None:
        """Leaves the others; all ranks do."""


class _WithoutReplay:
    """Real ranks find each other by what they send: nobody needs to hear what this one does."""

    def begin(self) -> None:
        """Nothing."""

    def await_scheduled_start(self, kind: SpanKind, stage: int) -> None:
        """At once: it has waited for its inputs."""

    def enter(self, kind: SpanKind, stage: int) -> None:
        """Nothing."""

    def leave(self, kind: SpanKind, stage: int) -> float:
        """Unknown: the launcher sees all ranks' spans, this one does not."""
        return 0.0

    def end(self) -> None:
        """Nothing."""


class ProcessGroup(_WithoutReplay):
    """The ranks of torch.distributed, which is initialised."""

    def __init__(self) -> None:
        """Asks torch.distributed who there is."""
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def group(self, ranks: Sequence[int]) -> "_SubGroup":
        """As :meth:`Communicator.group`."""
        return _SubGroup(ranks)

    def exchange(self, receiving: Sequence[P2PBuffer], sending: Sequence[P2PBuffer]) -> Sequence[PendingWork]:
        """As :meth:`Communicator.exchange`: receives first, because gloo queues a receiver's readiness behind payload."""
        operations = [dist.P2POp(dist.irecv, tensor, source) for tensor, source in receiving]
        operations += [dist.P2POp(dist.isend, tensor, destination) for tensor, destination in sending]
        # NCCL answers with one work for the whole batch.
        return list(dist.batch_isend_irecv(operations)) if operations else []

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """As :meth:`Communicator.all_reduce`."""
        return _sum(tensor, None)

    def barrier(self) -> None:
        """As :meth:`Communicator.barrier`."""
        dist.barrier()

    def close(self) -> None:
        """Ends torch.distributed."""
        dist.destroy_process_group()


class _SubGroup:
    """Some ranks of torch.distributed."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = len(ranks)
        self._group: Any = dist.new_group(list(ranks))

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        return _sum(tensor, self._group)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        told = [torch.empty_like(tensor) for _ in range(self._ranks)]
        dist.all_gather(told, tensor, group=self._group)
        return told

    def close(self) -> None:
        dist.destroy_process_group(self._group)


def _sum(tensor: torch.Tensor, group: Any) -> PendingWork:
    work: PendingWork | None = dist.all_reduce(tensor, group=group, async_op=True)
    assert work is not None, "torch returns None only to ranks outside the group"
    return work


class CompletedWork:
    """Work that took no time."""

    def wait(self) -> None:
        """At once."""


class SingleRank(_WithoutReplay):
    """One rank, which needs no torch.distributed: every stage runs on rank 0, and nothing leaves it."""

    rank, ranks = 0, 1

    def group(self, ranks: Sequence[int]) -> Group:
        """There is none."""
        raise ValueError(f"there are no ranks {list(ranks)} in a training of one rank")

    def exchange(self, receiving: Sequence[P2PBuffer], sending: Sequence[P2PBuffer]) -> Sequence[PendingWork]:
        """Nothing changes its place."""
        assert not receiving, "a stage of a training of one rank reads from another rank"
        assert not sending, "a stage of a training of one rank is read on another rank"
        return []

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """The sum over one rank is there."""
        return CompletedWork()

    def barrier(self) -> None:
        """All are there."""

    def close(self) -> None:
        """There is nobody to leave."""

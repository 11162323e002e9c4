"""The all-reduces of all jobs of a rank: one at a time, in the order in which they start, beside the computing.

Two at once would share the link, and the one that is needed first would arrive later. One process group and one thread
serve all jobs, so a job that joins or leaves needs no new groups.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from deeppool.collectives.perform.schedule_group import PendingAllReduce, ScheduleGroup
from deeppool.collectives.schedule import Schedule
from deeppool.device.protocol import Device
from deeppool.device.transfer import PendingWork
from deeppool.errors import RunError
from deeppool.execution.communicator import CompletedWork, Group, ProcessGroup


class TransferQueue(ProcessGroup):
    """All ranks of torch.distributed, as a communicator of any number of jobs that compute in turns."""

    def __init__(self, device: Device) -> None:
        """Creates the groups; every rank calls it."""
        super().__init__(device)
        members = list(range(self.ranks))
        self.transfers: list[tuple[float, float]] = []
        """When each all-reduce that was waited for began on this rank, and ended (``time.perf_counter``)."""
        with device.unbound():
            self._queue = ScheduleGroup(device, members) if self.ranks > 1 else None
            self._gathers = super().group(members) if self.ranks > 1 else None

    def group(self, ranks: Sequence[int], *, schedules: bool = False) -> Group:
        """Returns the group of all ranks, which all jobs share."""
        if self._queue is None or self._gathers is None or len(ranks) != self.ranks:
            raise RunError(
                f"jobs that share ranks use all {self.ranks} of them, got {list(ranks)} (plan with every layer on "
                "all GPUs, for two or more)"
            )
        return _SharedGroup(self._device, self._queue, self._gathers, self.transfers)

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """Starts an all-reduce that does not wait for the queue; see :meth:`Communicator.all_reduce`."""
        return CompletedWork() if self._gathers is None else self._gathers.all_reduce(tensor)

    def close_groups(self) -> None:
        """Ends the groups."""
        if self._queue is not None and self._gathers is not None:
            self._queue.close()
            self._gathers.close()

    def close(self) -> None:
        """Ends the groups, and torch.distributed."""
        self.close_groups()
        dist.destroy_process_group()


class _SharedGroup:
    """All ranks, for one job."""

    def __init__(
        self, device: Device, queue: ScheduleGroup, gathers: Group, transfers: list[tuple[float, float]]
    ) -> None:
        self._device, self._queue, self._gathers, self._transfers = device, queue, gathers, transfers

    def all_reduce(self, tensor: torch.Tensor, schedule: Schedule | None = None) -> PendingWork:
        transfer = self._device.transfer([tensor], [])
        work = _Transfer(self._queue.all_reduce(transfer.received[0], schedule), self._transfers)
        return transfer.started([work])[0]

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._gathers.gather(tensor)

    def close(self) -> None:
        """Does nothing: the other jobs go on."""


class _Transfer:
    """An all-reduce in the queue, whose times are noted."""

    def __init__(self, work: PendingAllReduce, transfers: list[tuple[float, float]]) -> None:
        self._work, self._transfers = work, transfers

    def wait(self) -> None:
        self._transfers.append(self._work.wait())

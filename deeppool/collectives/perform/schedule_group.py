"""All-reduces beside other work, one at a time and in order: a thread and a process group of their own.

A schedule needs the rank between its rounds, so an asynchronous one needs a thread. Two threads must not share a
process group: nearly all of their messages would mix.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist

from deeppool.collectives.perform.performer import Performer
from deeppool.collectives.perform.process_group import new_group
from deeppool.collectives.schedule import Schedule
from deeppool.device.protocol import Device


class PendingAllReduce:
    """An all-reduce in progress."""

    def __init__(self, future: "Future[tuple[float, float]]") -> None:
        """Takes the thread's result."""
        self._future = future

    def wait(self) -> tuple[float, float]:
        """Returns when the tensor holds the sum: when the thread began and ended (``time.perf_counter``).

        Raises what the thread raised.
        """
        return self._future.result()


class ScheduleGroup:
    """Some ranks of torch.distributed that all-reduce in one thread, by schedules or the library."""

    def __init__(self, device: Device, ranks: Sequence[int]) -> None:
        """Creates the process group and the thread; every rank of torch.distributed calls it, in the same order."""
        self.ranks = tuple(ranks)
        self._group = new_group(device, ranks)
        self._thread: ThreadPoolExecutor | None = None
        """None on a rank outside the group."""
        if dist.get_rank() not in ranks:
            return
        # NCCL wants all ranks of a group in its first call; the first steps of a schedule may be of some.
        dist.barrier(self._group)
        self._performer = Performer(self._group)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schedules")
        # A thread inherits the cores of the one that starts it: now, not at the first all-reduce.
        self._thread.submit(int).result()

    def all_reduce(self, tensor: torch.Tensor, schedule: Schedule | None) -> PendingAllReduce:
        """Starts to replace each rank's tensor by the sum over all ranks, after earlier calls.

        Args:
            tensor: its memory is read and written until the call is complete.
            schedule: its steps; None: the library's own all-reduce.
        """
        assert self._thread is not None, "a rank outside the group has nothing to sum"
        ready = None if tensor.is_cpu else torch.accelerator.current_stream(tensor.device).record_event()
        return PendingAllReduce(self._thread.submit(self._perform, schedule, tensor, ready))

    def close(self) -> None:
        """Ends the thread and the process group."""
        if self._thread is not None:
            self._thread.shutdown()
        dist.destroy_process_group(self._group)

    def _perform(
        self, schedule: Schedule | None, tensor: torch.Tensor, ready: torch.Event | None
    ) -> tuple[float, float]:
        if ready is not None:
            # The current device is each thread's own; and this stream knows nothing of the caller's.
            torch.accelerator.set_device_index(tensor.device.index)
            ready.synchronize()
        began = time.perf_counter()
        if schedule is None:
            dist.all_reduce(tensor, group=self._group)
        else:
            self._performer.perform(schedule, tensor)
        if ready is not None:
            torch.accelerator.current_stream(tensor.device).synchronize()
        return began, time.perf_counter()

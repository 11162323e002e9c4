"""The emulated accelerator as a device of the project."""

import atexit
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from deeppool.device.clock import Clock
from deeppool.device.cpu import processor_name, usable_cores
from deeppool.device.datasheet import GPUS, GpuSheet, find_gpu
from deeppool.device.emulated.graph import capture_graphs
from deeppool.device.emulated.host_transfer import HostTransfer
from deeppool.device.emulated.kernel_costs import KernelCosts
from deeppool.device.emulated.registration import Registration
from deeppool.device.emulated.runtime import DeviceRuntime, DeviceStream
from deeppool.device.emulated.scheduler import Event, Scheduler
from deeppool.device.emulated.virtual_scheduler import HARDWARE_QUEUES, VirtualScheduler
from deeppool.device.event_times import EventTimes, HostEventTimes
from deeppool.device.heap import keep_memory
from deeppool.device.profiler_ranges import record_range
from deeppool.device.protocol import Launch, Precision, StreamPriority
from deeppool.errors import InvalidValueError

if TYPE_CHECKING:
    from datetime import timedelta

    import torch


SLOTS = 2
"""Kernels that run at the same time on the device in the machine's time."""


class EmulatedDevice:
    """An accelerator emulated in this process, as a :class:`deeppool.device.protocol.Device`."""

    backend = "gloo"
    asynchronous = True

    def __init__(self, runtime: DeviceRuntime, sheet: GpuSheet | None = None) -> None:
        """Names it after the GPU, or after the processor whose time it takes."""
        self.runtime, self.sheet = runtime, sheet
        self.kind = "emulated" if sheet is None else f"emulated:{sheet.name}"
        self.name = f"{processor_name()}, emulating an accelerator" if sheet is None else f"emulated {sheet.title}"
        self.memory: float | None = None if sheet is None else sheet.memory
        self.count = len(usable_cores()) if sheet is None else 1

    @property
    def clock(self) -> Clock:
        """The machine's clock; of a GPU that is not here, a virtual one."""
        return self.runtime.scheduler.clock

    @contextmanager
    def times_only(self) -> Iterator[None]:
        """Computes no values in the block, in virtual time: kernels take as long as ever, and leave memory as it is.

        Times depend on shapes alone, so experiments on full-sized models take seconds. Losses mean nothing. In the
        machine's time kernels take the time in which they compute.
        """
        scheduler = self.runtime.scheduler
        before, scheduler.computes = scheduler.computes, scheduler.computes and self.sheet is None
        try:
            yield
        finally:
            scheduler.computes = before

    def select(self, index: int) -> None:
        """Keeps freed memory, and computes each kernel with one thread."""
        import torch

        keep_memory()
        torch.set_num_threads(1)

    def unbound(self) -> AbstractContextManager[None]:
        """Returns a null context: a process is not bound to a core."""
        return nullcontext()

    def group_settings(self, timeout: "timedelta") -> Mapping[str, Any]:
        """Returns none: gloo has neither streams nor devices."""
        return {}

    def torch_device(self, index: int = 0) -> "torch.device":
        """Returns the only device of this GPU in each process."""
        return self.runtime.place

    def synchronize(self) -> None:
        """Waits for all streams."""
        self.runtime.synchronize()

    def event_times(self) -> EventTimes:
        """Returns times by the host's clock, which waits for the current stream."""
        return HostEventTimes(self.synchronize_stream)

    def synchronize_stream(self) -> None:
        """Waits for the current stream."""
        self.runtime.synchronize(self.runtime.stream)

    def stamp(self) -> Event:
        """Records an event on the current stream; inside a capture it becomes an entry of the graph."""
        event = Event()
        self.runtime.record(event)
        return event

    def seconds(self, earlier: Event, later: Event) -> float:
        """Returns the seconds between the times at which the streams reached two events."""
        return later.time - earlier.time

    def passed(self, stamp: Event) -> bool:
        """Queries an event. An event inside a graph refers to the graph's last replay."""
        return self.runtime.passed(stamp)

    def await_stamp(self, stamp: Event) -> None:
        """Waits for an event."""
        self.runtime.await_event(stamp)

    def stream(self, priority: StreamPriority) -> "EmulatedStream":
        """Returns one of 32 streams of that priority: the 33rd is the first again."""
        return EmulatedStream(self, self.runtime.make_stream(priority))

    def streams_of_one_pool(self, count: int) -> "tuple[EmulatedStream, ...]":
        """Creates streams with one pool of memory (:mod:`deeppool.device.emulated.shared_pool`)."""
        return tuple(EmulatedStream(self, stream) for stream in self.runtime.make_streams_of_one_pool(count))

    def partial_stream(self, multiprocessors: int) -> "EmulatedStream":
        """Returns a stream of low priority on some of the multiprocessors, as that of a green context."""
        return EmulatedStream(self, self.runtime.make_stream("low", multiprocessors))

    def repeatable(self, *works: Callable[[], None]) -> tuple[Callable[[], None], ...]:
        """Captures each work as one graph, all in one pool of memory."""
        return capture_graphs(self.runtime, works)

    def arithmetic(self, precision: Precision) -> AbstractContextManager[None]:
        """Returns a null context: 32-bit arithmetic has one mode, that of the CPU."""
        if precision == "tf32":
            raise InvalidValueError("precision tf32 needs an NVIDIA GPU, got device emulated (use fp32, bf16 or fp16)")
        if precision == "bf16" and self.sheet is not None:
            self.sheet.check_bf16()
        return nullcontext()

    def named_range(self, name: str) -> AbstractContextManager[object]:
        """Encloses work in a range of torch's profiler."""
        return record_range(name)

    def transfer(self, received: "Sequence[torch.Tensor]", sent: "Sequence[torch.Tensor]") -> HostTransfer:
        """Waits for the current stream, and returns the tensors in the memory of the host."""
        return HostTransfer(self.runtime, received, sent)

    def send(self, source: "torch.Tensor", place: "torch.device") -> "torch.Tensor":
        """Copies the values that the tensor has now; the copy itself is work of the current stream."""
        return source.to(place, non_blocking=True)

    def fetch(self, source: "torch.Tensor") -> "Callable[[], torch.Tensor]":
        """Launches the copy, and waits for an event behind it."""
        copy, copied = source.detach().to("cpu", non_blocking=True), self.stamp()

        def wait() -> "torch.Tensor":
            self.runtime.await_event(copied)
            return copy

        return wait

    def random_state(self) -> "torch.Tensor":
        """Returns the state of the device's generator."""
        return self.runtime.generator.get_state()

    def set_random_state(self, state: "torch.Tensor") -> None:
        """Restores the state of the device's generator."""
        self.runtime.generator.set_state(state)

    @contextmanager
    def own_random_numbers(self) -> Iterator[None]:
        """Replaces the device's generator in the block by a copy, which graphs captured in it keep."""
        import torch

        before = self.runtime.generator
        self.runtime.generator = before.clone_state()
        try:
            with torch.random.fork_rng(devices=[]):
                yield
        finally:
            self.runtime.generator = before

    def limit_memory(self, budget: float | None) -> None:
        """Makes allocations over a budget fail, or over the device's memory if that is less."""
        self.runtime.memory.size = min((size for size in (budget, self.memory) if size is not None), default=None)

    def free_memory(self) -> int:
        """Returns the bytes that the operating system would give, within the device's memory or the budget."""
        import psutil

        memory = self.runtime.memory
        # Memory that is never written is not taken from the machine.
        free = int(psutil.virtual_memory().available) if self.runtime.scheduler.computes else int(1e15)
        return free if memory.size is None else min(free, int(memory.size - memory.now))

    def reserved_memory(self) -> int:
        """Returns the bytes of all blocks, used and free."""
        return self.runtime.memory.reserved

    def memory_use(self) -> tuple[int, int]:
        """Returns the bytes in use, now and at the peak."""
        return self.runtime.memory.use()


class EmulatedStream:
    """Stream of an emulated device."""

    def __init__(self, device: EmulatedDevice, stream: DeviceStream) -> None:
        """Wraps a stream of the runtime."""
        self._device, self._stream = device, stream
        self.priority = stream.queue.priority

    def launch(self, work: Callable[[], None]) -> Launch:
        """Launches on the stream, from any thread."""
        with self._device.runtime.selected(self._stream):
            start = self._device.stamp()
            work()
            return Launch(self._device, start, self._device.stamp())

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the stream current in the block; work after the block waits for it on the device."""
        runtime = self._device.runtime
        surrounding = runtime.stream
        runtime.wait(self._stream, self._device.stamp())
        with runtime.selected(self._stream):
            yield
            runtime.wait(surrounding, self._device.stamp())

    def wait(self, stamp: Event) -> None:
        """Makes the stream wait for an event."""
        self._device.runtime.wait(self._stream, stamp)


def emulated_device(sheet: GpuSheet | None = None) -> EmulatedDevice:
    """Returns an emulated device of this process; the first call registers all with torch.

    Args:
        sheet: data sheet of a GPU, whose device is in virtual time; None: the device in the machine's time.
    """
    return device_at(_index_of(sheet))


def device_at(index: int) -> EmulatedDevice:
    """Returns the emulated device of this process with an index of torch."""
    _register()
    if index not in _devices:
        _devices[index] = _make(index)
    return _devices[index]


def new_device(gpu: str, *, queues: int = HARDWARE_QUEUES) -> EmulatedDevice:
    """Creates an emulated GPU of its own, at time 0, for an experiment; tensors are created on the latest one.

    Args:
        gpu: name of its data sheet.
        queues: hardware queues; see :mod:`deeppool.device.emulated.virtual_scheduler`.
    """
    index = _index_of(find_gpu(gpu))
    _register()
    _devices[index] = _make(index, queues)
    return _devices[index]


_devices: dict[int, EmulatedDevice] = {}
"""Devices of this process by their index of torch."""


def _index_of(sheet: GpuSheet | None) -> int:
    return 0 if sheet is None else 1 + list(GPUS).index(sheet.name)


def _make(index: int, queues: int = HARDWARE_QUEUES) -> EmulatedDevice:
    if index == 0:
        return EmulatedDevice(DeviceRuntime(Scheduler(SLOTS)))
    sheet = list(GPUS.values())[index - 1]
    costs = KernelCosts(sheet)
    scheduler = VirtualScheduler(sheet.multiprocessors, costs.bandwidth, queues=queues)
    return EmulatedDevice(DeviceRuntime(scheduler, index=index, costs=costs, memory=sheet.memory), sheet)


@cache
def _register() -> Registration:
    # A forked process has none of the threads that compute.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_devices.clear)
    # Python ends a process with a thread in a kernel by an abort.
    atexit.register(_end_all)
    return Registration(
        lambda index: device_at(index).runtime, lambda: [device.runtime for device in _devices.values()]
    )


def _end_all() -> None:
    for device in _devices.values():
        device.runtime.scheduler.end()

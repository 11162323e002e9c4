"""CPU device: one core takes the place of one GPU."""

import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppool.base.sharing import Priority
from deeppool.device.clock import WALL, Clock
from deeppool.device.event_times import EventTimes, HostEventTimes
from deeppool.device.heap import keep_memory, share_heap
from deeppool.device.profiler_ranges import record_range
from deeppool.device.protocol import Launch, Precision, StreamPriority
from deeppool.device.transfer import TransferBuffers
from deeppool.errors import InvalidValueError

if TYPE_CHECKING:
    from datetime import timedelta

    import torch

LOWEST = "SCHED_IDLE"
"""Name that :func:`lower_priority` returns for the priority that never preempts another process."""


class CpuDevice:
    """CPU of this machine as a :class:`deeppool.device.protocol.Device`."""

    kind = "cpu"
    backend = "gloo"
    memory: float | None = None
    asynchronous = False
    clock: Clock = WALL

    def __init__(self) -> None:
        """Reads the model name from the operating system."""
        self.name = processor_name()
        self._cores = usable_cores()
        self.count = len(self._cores)

    def times_only(self) -> AbstractContextManager[None]:
        """Returns a null context: kernels take the time in which they compute."""
        return nullcontext()

    def select(self, index: int) -> None:
        """Sets one thread on a core of its own and keeps freed memory; ranks beyond the number of cores share them."""
        import torch

        keep_memory()
        torch.set_num_threads(1)
        pin_to_core(self._cores[index % len(self._cores)])

    def unbound(self) -> AbstractContextManager[None]:
        """Lets this thread, whose cores a new one inherits, run on all cores for the block.

        gloo's thread polls while a message has arrived whose receive is not posted. On the core of the thread that
        would post it, it keeps that one waiting until the scheduler's next tick: 4 ms instead of 0.4 for a small
        all-reduce (``benchmarks/network``).
        """
        return on_cores(self._cores)

    def group_settings(self, timeout: "timedelta") -> Mapping[str, Any]:
        """Returns none: gloo has neither streams nor devices."""
        return {}

    def torch_device(self, index: int = 0) -> "torch.device":
        """Returns the CPU; every rank has the same one."""
        import torch

        return torch.device("cpu")

    def synchronize(self) -> None:
        """Does nothing: operators on a CPU are complete when they return."""

    def event_times(self) -> EventTimes:
        """Returns times by the host's clock."""
        return HostEventTimes()

    def synchronize_stream(self) -> None:
        """Does nothing, as :meth:`synchronize`."""

    def stamp(self) -> float:
        """Returns the current time of the clock."""
        return time.perf_counter()

    def seconds(self, earlier: float, later: float) -> float:
        """Returns the difference of two stamps."""
        return later - earlier

    def passed(self, stamp: float) -> bool:
        """Returns True: earlier work is always complete."""
        return True

    def await_stamp(self, stamp: float) -> None:
        """Returns at once: the work before a stamp is done when it is read."""

    def stream(self, priority: StreamPriority) -> "CpuStream":
        """Returns the calling thread as a stream; its priority is the operating system's (:func:`lower_priority`)."""
        return CpuStream(self, priority)

    def streams_of_one_pool(self, count: int) -> "tuple[CpuStream, ...]":
        """Returns streams whose threads, which start later, allocate from one heap."""
        share_heap()
        return tuple(self.stream("high") for _ in range(count))

    def repeatable(self, *works: Callable[[], None]) -> tuple[Callable[[], None], ...]:
        """Returns the works unchanged."""
        return works

    def arithmetic(self, precision: Precision) -> AbstractContextManager[None]:
        """Returns a null context: 32-bit arithmetic has one mode on a CPU."""
        if precision == "tf32":
            raise InvalidValueError("precision tf32 needs an NVIDIA GPU, got device cpu (use fp32, bf16 or fp16)")
        return nullcontext()

    def named_range(self, name: str) -> AbstractContextManager[object]:
        """Encloses work in a range of torch's profiler."""
        return record_range(name)

    def transfer(self, received: "Sequence[torch.Tensor]", sent: "Sequence[torch.Tensor]") -> TransferBuffers:
        """Returns the tensors as they are."""
        return TransferBuffers(received, sent)

    def send(self, source: "torch.Tensor", place: "torch.device") -> "torch.Tensor":
        """Returns the tensor."""
        return source

    def fetch(self, source: "torch.Tensor") -> "Callable[[], torch.Tensor]":
        """Returns a copy."""
        copy = source.detach().clone()
        return lambda: copy

    def random_state(self) -> None:
        """Returns None: random numbers are the host's."""

    def set_random_state(self, state: "torch.Tensor") -> None:
        """Does nothing: the state is another device's."""

    def own_random_numbers(self) -> AbstractContextManager[None]:
        """Restores the host's random numbers after the block; work that is done later draws from them."""
        import torch

        return torch.random.fork_rng(devices=[])

    def limit_memory(self, budget: float | None) -> None:
        """Does nothing: who started the process watches what it holds of the machine's memory."""

    def free_memory(self) -> int:
        """Returns the bytes that the operating system would give without swapping."""
        import psutil

        return int(psutil.virtual_memory().available)

    def reserved_memory(self) -> None:
        """Returns None: the operating system's allocator keeps no such count."""

    def memory_use(self) -> None:
        """Returns None: the operating system's allocator keeps no such count."""


class CpuStream:
    """Calling thread as a stream."""

    def __init__(self, device: CpuDevice, priority: StreamPriority) -> None:
        """Stores the device and the priority."""
        self._device, self.priority = device, priority

    def launch(self, work: Callable[[], None]) -> Launch:
        """Performs the work at once."""
        start = self._device.stamp()
        work()
        return Launch(self._device, start, self._device.stamp())

    def current(self) -> AbstractContextManager[None]:
        """Returns a null context: the stream is always current."""
        return nullcontext()

    def wait(self, stamp: float) -> None:
        """Returns at once: work is complete when its launch returns."""


def processor_name() -> str:
    """Returns the ``model name`` of the first core, or the name from the platform module."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cores() -> list[int]:
    """Returns the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin_to_core(core: int | None) -> None:
    """Pins this process to one core, unless it has none of its own."""
    if core is not None:
        pin_to_cores({core})


def pin_to_cores(cores: Collection[int]) -> None:
    """Pins this thread, and those that it starts later, to some cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


@contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """Restricts this thread, and those that it starts, to some cores in the block, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_seconds_of(process: int) -> float:
    """Returns the CPU seconds of a process with all its threads, to the nanosecond on Linux.

    Raises:
        ProcessLookupError: there is no such process.
    """
    if platform.system() == "Linux":
        # Its clock, as clock_getcpuclockid(3) numbers it.
        try:
            return time.clock_gettime(~process << 3 | 2)
        except OSError:
            raise ProcessLookupError(f"there is no process {process}") from None
    import psutil

    try:
        times = psutil.Process(process).cpu_times()
    except psutil.NoSuchProcess:
        raise ProcessLookupError(f"there is no process {process}") from None
    return float(times.user + times.system)


def lower_priority(priority: Priority) -> str:
    """Lowers this process to a background's priority; returns the granted one, SCHED_IDLE or nice 19."""
    if priority == "lowest" and hasattr(os, "SCHED_IDLE"):
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return LOWEST
        except OSError:
            pass
    if priority in ("lowest", "nice"):
        os.nice(19)
        return "nice 19"
    return "normal"

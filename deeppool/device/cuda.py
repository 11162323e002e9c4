"""NVIDIA GPUs through torch."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from deeppool.device.clock import WALL, Clock
from deeppool.device.cpu import pin_to_cores, usable_cores
from deeppool.device.event_times import EventTimes
from deeppool.device.numa import cores_beside, pci_address
from deeppool.device.profiler_ranges import nvtx_range
from deeppool.device.protocol import Launch, Precision, StreamPriority
from deeppool.device.transfer import TransferBuffers
from deeppool.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from datetime import timedelta

    import torch

ORDERED_ALLOCATOR = "cudaMallocAsync"
"""torch's name of CUDA's own allocator, with one pool for all streams."""
WARM_UPS = 3
"""Runs before a capture, as torch's documentation of CUDA graphs asks for."""


HARDWARE_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Environment variable with the number of queues between host and GPU that CUDA creates when it is initialised."""


@contextmanager
def all_hardware_queues() -> Iterator[None]:
    """Makes CUDA, if it is initialised in this block, create 32 hardware queues, unless the user chose a number.

    With the 8 that CUDA creates by default, two streams may share one, and the foreground's work then waits behind the
    background's. CUDA takes the number from the environment, which is as it was when the block ends.
    """
    chosen = HARDWARE_QUEUES in os.environ
    os.environ.setdefault(HARDWARE_QUEUES, "32")
    try:
        yield
    finally:
        if not chosen:
            del os.environ[HARDWARE_QUEUES]


def cuda_problem() -> str | None:
    """Returns the reason why CUDA cannot be used, or None."""
    import torch

    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is a CPU build"
    if not torch.cuda.is_available():
        return "this machine has no usable NVIDIA GPU"
    return None


def gpu_count() -> int:
    """Returns the number of GPUs of this machine that torch can use."""
    import torch

    return torch.cuda.device_count()


def gpu_memory() -> tuple[int, int] | None:
    """Returns the free bytes and all bytes of the selected GPU; None where there is none."""
    import torch

    return torch.cuda.mem_get_info() if torch.cuda.is_available() else None


class CudaDevice:
    """NVIDIA GPUs of this machine as a :class:`deeppool.device.protocol.Device`."""

    kind = "cuda"
    backend = "nccl"
    asynchronous = True
    clock: Clock = WALL

    def __init__(self) -> None:
        """Queries the driver for the name, the number of GPUs and their memory."""
        import torch

        self.name = torch.cuda.get_device_name(0)
        self.count = torch.cuda.device_count()
        self.memory: float | None = float(torch.cuda.get_device_properties(0).total_memory)

    def times_only(self) -> AbstractContextManager[None]:
        """Returns a null context: kernels take the time in which they compute."""
        return nullcontext()

    def select(self, index: int) -> None:
        """Makes GPU ``index`` the current device of this process, and pins this thread to the cores beside it.

        A thread that may not use any of those cores stays where it is.
        """
        import torch

        torch.cuda.set_device(index)
        found: Any = torch.cuda.get_device_properties(index)
        beside = cores_beside(pci_address(found.pci_domain_id, found.pci_bus_id, found.pci_device_id))
        if allowed := beside.intersection(usable_cores()):
            pin_to_cores(allowed)

    def unbound(self) -> AbstractContextManager[None]:
        """Returns a null context: a process with its own GPU runs on any core."""
        return nullcontext()

    def group_settings(self, timeout: "timedelta") -> Mapping[str, Any]:
        """Returns NCCL's streams at high priority, as the foreground's own, and the GPU that the rank has selected.

        torch's default is the lowest priority: kernels of a background would be placed before the foreground's
        all-reduce. With a device, ranks connect at once, and groups share the connections.
        """
        import torch

        options = torch.distributed.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        # torch warns where this differs from the timeout of the call.
        options._timeout = timeout
        return {"pg_options": options, "device_id": torch.device("cuda", torch.cuda.current_device())}

    def torch_device(self, index: int = 0) -> "torch.device":
        """Returns GPU ``index`` of this machine."""
        import torch

        return torch.device("cuda", index)

    def synchronize(self) -> None:
        """Waits for all streams."""
        import torch

        torch.cuda.synchronize()

    def event_times(self) -> EventTimes:
        """Returns times by the GPU's clock, for which no host waits."""
        from deeppool.device.cuda_event_times import CudaEventTimes

        return CudaEventTimes()

    def synchronize_stream(self) -> None:
        """Waits for the current stream."""
        import torch

        torch.cuda.current_stream().synchronize()

    def stamp(self) -> "torch.cuda.Event":
        """Records an event on the current stream; inside a capture it becomes a node of the graph."""
        import torch

        event = torch.cuda.Event(enable_timing=True, external=torch.cuda.is_current_stream_capturing())
        event.record()
        return event

    def seconds(self, earlier: "torch.cuda.Event", later: "torch.cuda.Event") -> float:
        """Returns the seconds between two events, by the GPU's clock."""
        return float(earlier.elapsed_time(later)) / 1e3

    def passed(self, stamp: "torch.cuda.Event") -> bool:
        """Queries an event. An event inside a graph refers to the graph's last replay."""
        return bool(stamp.query())

    def await_stamp(self, stamp: "torch.cuda.Event") -> None:
        """Waits for an event in the driver, without the interpreter's lock."""
        stamp.synchronize()

    def stream(self, priority: StreamPriority) -> "CudaStream":
        """Returns one of torch's 32 streams of that priority on the selected GPU: the 33rd is the first again."""
        import torch

        lowest, highest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]  # static, contrary to its types
        return CudaStream(self, priority, torch.cuda.Stream(priority=highest if priority == "high" else lowest))

    def streams_of_one_pool(self, count: int) -> "tuple[CudaStream, ...]":
        """Returns streams of CUDA's own pool, which orders what one stream frees and another one gets.

        torch's default allocator never gives a block of one stream to another. (Never run on a GPU.)

        Raises:
            DeviceUnavailableError: torch runs its default allocator.
        """
        import torch

        if torch.cuda.get_allocator_backend() != ORDERED_ALLOCATOR:
            raise DeviceUnavailableError(
                f"torch's allocator is '{torch.cuda.get_allocator_backend()}', which keeps freed memory for each "
                f"stream (set PYTORCH_CUDA_ALLOC_CONF=backend:{ORDERED_ALLOCATOR} before Python starts)"
            )
        return tuple(self.stream("high") for _ in range(count))

    def repeatable(self, *works: Callable[[], None]) -> tuple[Callable[[], None], ...]:
        """Captures each work as one graph, all in one pool of memory."""
        import torch

        pool = torch.cuda.graph_pool_handle()
        captured = []
        surrounding = torch.cuda.current_stream()
        with captures_as_current() as stream, warnings.catch_warnings():
            # A piece that only creates views launches no kernels.
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            stream.wait_stream(surrounding)
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    for work in works:
                        work()
            surrounding.wait_stream(stream)
            for work in works:
                graph = torch.cuda.CUDAGraph()
                # Other threads of the process, such as NCCL's, continue meanwhile.
                with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                    work()
                captured.append(graph.replay)
        return tuple(captured)

    @contextmanager
    def arithmetic(self, precision: Precision) -> Iterator[None]:
        """Sets TF32 for both products and convolutions or for neither; torch alone uses it for convolutions only.

        The older ``allow_tf32`` flags get the same value: where they differ, torch raises when it reads them, as
        torch.export does.
        """
        import torch

        # torch's type stubs are incomplete here.
        backends: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)  # type: ignore[attr-defined]
        flags: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
        before = [backend.fp32_precision for backend in backends]
        try:
            flags_before = [flag.allow_tf32 for flag in flags]
        except RuntimeError:  # the user has set the newer settings alone
            flags, flags_before = (), []
        for flag in flags:
            flag.allow_tf32 = precision == "tf32"
        for backend in backends:
            backend.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        try:
            yield
        finally:
            for flag, allowed in zip(flags, flags_before, strict=True):
                flag.allow_tf32 = allowed
            for backend, setting in zip(backends, before, strict=True):
                backend.fp32_precision = setting

    def named_range(self, name: str) -> AbstractContextManager[object]:
        """Encloses launches in a range of NVTX and of torch's profiler."""
        return nvtx_range(name)

    def transfer(self, received: "Sequence[torch.Tensor]", sent: "Sequence[torch.Tensor]") -> TransferBuffers:
        """Returns the tensors as they are."""
        return TransferBuffers(received, sent)

    def send(self, source: "torch.Tensor", place: "torch.device") -> "torch.Tensor":
        """Copies from pinned memory: from any other, the host waits until the copy has begun, behind all earlier work.

        torch keeps pinned memory that is released until the copies from it are done, and uses it again.
        """
        pinned = source.pin_memory() if source.device.type == "cpu" and not source.is_pinned() else source
        return pinned.to(place, non_blocking=True)

    def fetch(self, source: "torch.Tensor") -> "Callable[[], torch.Tensor]":
        """Copies to pinned memory, and waits for an event behind the copy."""
        import torch

        copy = torch.empty_like(source, device="cpu", pin_memory=True)
        copy.copy_(source.detach(), non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

        def wait() -> "torch.Tensor":
            copied.synchronize()
            return copy

        return wait

    def random_state(self) -> "torch.Tensor":
        """Returns the state of the selected GPU's generator."""
        import torch

        return torch.cuda.get_rng_state()

    def set_random_state(self, state: "torch.Tensor") -> None:
        """Restores the state of the selected GPU's generator."""
        import torch

        torch.cuda.set_rng_state(state)

    @contextmanager
    def own_random_numbers(self) -> Iterator[None]:
        """Switches the selected GPU's generator to a copy of its state in the block.

        A graph advances the state that was current at its capture, whichever is when it is replayed.
        """
        import torch

        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.graphsafe_get_state()
        generator.graphsafe_set_state(generator.clone_state())
        try:
            with torch.random.fork_rng(devices=[]):
                yield
        finally:
            generator.graphsafe_set_state(before)

    def limit_memory(self, budget: float | None) -> None:
        """Makes allocations of this process over a budget fail, as if the GPU were smaller (never run on a GPU)."""
        import torch

        if budget is not None:
            # Of the selected one: another GPU of this machine may have more.
            whole = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget / whole))

    def free_memory(self) -> int:
        """Returns the driver's free bytes plus those that torch's allocator has reserved and does not use."""
        import torch

        free, _ = torch.cuda.mem_get_info()
        return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())

    def reserved_memory(self) -> int:
        """Returns the bytes reserved by torch."""
        import torch

        return torch.cuda.memory_reserved()

    def memory_use(self) -> tuple[int, int]:
        """Returns the bytes allocated by torch, now and at the peak."""
        import torch

        now, highest = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return now, highest


class CudaStream:
    """Stream of torch on one GPU."""

    def __init__(self, device: CudaDevice, priority: StreamPriority, handle: "torch.cuda.Stream") -> None:
        """Wraps a stream of torch."""
        self._device, self.priority, self.handle = device, priority, handle

    def launch(self, work: Callable[[], None]) -> Launch:
        """Launches on the stream, from any thread, whichever GPU is selected in it."""
        import torch

        with torch.cuda.stream(self.handle):
            start = self._device.stamp()
            work()
            return Launch(self._device, start, self._device.stamp())

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the stream current in the block; work after the block waits for it on the device."""
        import torch

        surrounding = torch.cuda.current_stream(self.handle.device)
        self.handle.wait_stream(surrounding)
        with torch.cuda.stream(self.handle):
            yield
        surrounding.wait_stream(self.handle)

    def wait(self, stamp: "torch.cuda.Event") -> None:
        """Makes the stream wait for an event."""
        self.handle.wait_event(stamp)


@contextmanager
def captures_as_current() -> Iterator["torch.cuda.Stream"]:
    """Makes graphs captured in the block keep the priority and SMs of the current stream; yields that stream.

    A graph's kernels have the priority of the stream that captured them, not of the one that replays them. torch by
    itself captures on a stream of priority 0, the lowest, and ``make_graphed_callables`` has no parameter for another.
    Two jobs must not capture on the same stream either: the workspace of cuBLAS belongs to it.
    """
    import torch

    stream = torch.cuda.current_stream()
    if stream == torch.cuda.default_stream():  # which cannot be captured
        stream = torch.cuda.Stream()
    before = torch.cuda.graph.default_capture_stream
    torch.cuda.graph.default_capture_stream = stream
    try:
        yield stream
    finally:
        torch.cuda.graph.default_capture_stream = before

"""Protocols of devices, streams and launches, which :mod:`deeppool.device.cpu` and ``cuda`` implement."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from deeppool.device.clock import Clock
from deeppool.device.event_times import EventTimes
from deeppool.device.transfer import TransferBuffers

if TYPE_CHECKING:
    from datetime import timedelta

    import torch


Precision = Literal["fp32", "tf32", "bf16", "fp16"]
"""Precision of products and convolutions: 32 bits; 32 bits with TF32's short mantissa; 16 bits, under autocast."""
AUTOCAST = ("bf16", "fp16")
StreamPriority = Literal["high", "low"]
"""Priority of a stream: a device places waiting blocks of high priority first, without preempting running ones."""


class Stream(Protocol):
    """Queue of work of a device: done in order, concurrently with other streams."""

    priority: StreamPriority

    def launch(self, work: Callable[[], None]) -> "Launch":
        """Launches work on the device and returns; on a CPU the work is complete by then."""
        ...

    def current(self) -> AbstractContextManager[None]:
        """Makes this stream current for this thread in the block; its work follows that of the surrounding stream."""
        ...

    def wait(self, stamp: Any) -> None:
        """Makes later work of this stream follow what came before a stamp of another one; the host does not wait."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """Work launched on a stream."""

    device: "Device"
    start: Any
    end: Any
    """Stamps of the device before and after the work."""

    def done(self) -> bool:
        """Whether the work is complete; does not wait."""
        return self.device.passed(self.end)

    def seconds(self) -> float:
        """Returns the seconds that the work took on the device, once it is complete."""
        return self.device.seconds(self.start, self.end)


class Device(Protocol):
    """Device that computes layers."""

    kind: str
    """Kind of the device: ``cpu``, ``cuda``, ``emulated``, or ``emulated:h200`` and so for other GPUs."""
    name: str
    """Name given by the manufacturer."""
    backend: str
    """Backend of torch.distributed."""
    count: int
    """Number of ranks that can have a device exclusively: GPUs of this machine, or cores."""
    memory: float | None
    """Bytes of memory of each device, or None where it is shared with the whole machine."""

    @property
    def clock(self) -> Clock:
        """Time of the threads that launch on the device: the machine's, or virtual."""
        ...

    asynchronous: bool
    """Whether work runs after its launch has returned, so that graphs of it (:meth:`repeatable`) save launches."""

    def times_only(self) -> AbstractContextManager[None]:
        """Declares that only the times of the block's work count: in virtual time no values are computed."""
        ...

    def select(self, index: int) -> None:
        """Selects the device of this process by its index."""
        ...

    def unbound(self) -> AbstractContextManager[None]:
        """Lifts the binding to the selected device for threads started in the block, as those of a process group."""
        ...

    def group_settings(self, timeout: "timedelta") -> Mapping[str, Any]:
        """Returns further arguments of ``init_process_group`` and ``new_group`` for the foreground's collectives.

        Args:
            timeout: longest wait in a collective, as given to the same call.
        """
        ...

    def torch_device(self, index: int = 0) -> "torch.device":
        """Returns the torch device for tensors."""
        ...

    def synchronize(self) -> None:
        """Waits until all work launched on the device is complete."""
        ...

    def event_times(self) -> EventTimes:
        """Returns new times of events on the current stream, and waits for them."""
        ...

    def synchronize_stream(self) -> None:
        """Waits until all work launched on the current stream is complete; other streams continue."""
        ...

    def stamp(self) -> Any:
        """Records a point between earlier and later work on the device; read by :meth:`seconds`."""
        ...

    def seconds(self, earlier: Any, later: Any) -> float:
        """Returns the seconds between two stamps, once the device has reached them."""
        ...

    def passed(self, stamp: Any) -> bool:
        """Whether the device has reached a stamp; does not wait."""
        ...

    def await_stamp(self, stamp: Any) -> None:
        """Waits until the device has passed a stamp; other threads of the process go on."""
        ...

    def stream(self, priority: StreamPriority) -> Stream:
        """Creates a stream on the selected device."""
        ...

    def streams_of_one_pool(self, count: int) -> tuple[Stream, ...]:
        """Creates streams of high priority, and threads that start later, that use memory freed in one another.

        A block freed in one stream follows that stream's work up to there when another one gets it. By default each
        stream keeps what it frees.

        Raises:
            DeviceUnavailableError: the device's allocator cannot do so.
        """
        ...

    def repeatable(self, *works: Callable[[], None]) -> tuple[Callable[[], None], ...]:
        """Makes each work repeatable without launching its kernels one by one: a CUDA graph.

        It keeps the priority of the stream that is current now, on any stream that repeats it. Stamps made inside are
        made anew by each repetition. All works are run in order some times first, then captured in that order. They
        share their memory, so what one frees is overwritten when another runs: one call per job. The CPU launches
        launches nothing, and returns the works unchanged.
        """
        ...

    def arithmetic(self, precision: Precision) -> AbstractContextManager[None]:
        """Sets whether 32-bit products and convolutions use TF32 while it is open; torch.export then refuses.

        Raises:
            InvalidValueError: the device has no such arithmetic.
        """
        ...

    def named_range(self, name: str) -> AbstractContextManager[object]:
        """Encloses work that is launched in a range of this name, for a profiler that the user has started."""
        ...

    def transfer(self, received: "Sequence[torch.Tensor]", sent: "Sequence[torch.Tensor]") -> TransferBuffers:
        """Returns the tensors of a communication on the current stream as the library of collectives takes them."""
        ...

    def send(self, source: "torch.Tensor", place: "torch.device") -> "torch.Tensor":
        """Returns a tensor of the host on the device, behind the work of the current stream; does not wait for it."""
        ...

    def fetch(self, source: "torch.Tensor") -> "Callable[[], torch.Tensor]":
        """Starts to copy a tensor to the host, behind the work of the current stream.

        Returns:
            A function that waits for this copy alone, and returns it.
        """
        ...

    def random_state(self) -> "torch.Tensor | None":
        """Returns the state of the device's own random numbers; None where they are the host's."""
        ...

    def set_random_state(self, state: "torch.Tensor") -> None:
        """Restores a result of :meth:`random_state`."""
        ...

    def own_random_numbers(self) -> AbstractContextManager[None]:
        """Gives work of the block, and graphs captured in it whenever they are repeated, random numbers of its own."""
        ...

    def limit_memory(self, budget: float | None) -> None:
        """Makes allocations of this process over a budget in bytes fail, where the device has memory of its own."""
        ...

    def free_memory(self) -> int:
        """Returns the bytes available for new tensors."""
        ...

    def reserved_memory(self) -> int | None:
        """Returns the bytes that the allocator has taken from the device, or None where the device does not count."""
        ...

    def memory_use(self) -> tuple[int, int] | None:
        """Returns the bytes held now and at the peak since the last call, or None where the device does not count."""
        ...

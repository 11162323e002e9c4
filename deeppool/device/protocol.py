"""Protocols of devices, streams and launches, which :mod:`deeppool.device.cpu` and ``cuda`` implement."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
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
    """Kind of the device: ``cpu`` or ``cuda``."""
    name: str
    """Name given by the manufacturer."""
    backend: str
    """Backend of torch.distributed."""
    count: int
    """Number of ranks that can have a device exclusively: GPUs of this machine, or cores."""
    memory: float | None
    """Bytes of memory of each device, or None where it is shared with the whole machine."""

    def select(self, index: int) -> None:
        """Selects the device of this process by its index."""
        ...

    def unbound(self) -> AbstractContextManager[None]:
        """Lifts the binding to the selected device for threads started in the block, as those of a process group."""
        ...

    def torch_device(self, index: int = 0) -> "torch.device":
        """Returns the torch device for tensors."""
        ...

    def synchronize(self) -> None:
        """Waits until all work launched on the device is complete."""
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

    def stream(self, priority: StreamPriority) -> Stream:
        """Creates a stream on the selected device."""
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

    def free_memory(self) -> int:
        """Returns the bytes available for new tensors."""
        ...

    def memory_use(self) -> tuple[int, int] | None:
        """Returns the bytes held now and at the peak since the last call, or None where the device does not count."""
        ...

"""Protocols of devices, streams and launches, which :mod:`deeppool.device.cpu` and ``cuda`` implement."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch


Precision = Literal["fp32", "tf32", "bf16", "fp16"]
"""Of products and convolutions: 32 bits; 32 bits with TF32's short mantissa; 16 bits, under autocast."""
AUTOCAST = ("bf16", "fp16")
StreamPriority = Literal["high", "low"]
"""Whose waiting blocks a device places first; what runs is never stopped for it."""


class Stream(Protocol):
    """A queue of work of a device: done in order, beside what other streams hold."""

    priority: StreamPriority

    def launch(self, work: Callable[[], None]) -> "Launch":
        """Gives the device some work and returns; on a CPU the work is then done."""
        ...

    def current(self) -> AbstractContextManager[None]:
        """This thread gives its work to this stream in the block, after what the surrounding stream was given."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """Work that a stream was given."""

    device: "Device"
    start: Any
    end: Any
    """Stamps of the device before and behind it."""

    def done(self) -> bool:
        """Asks, and never waits."""
        return self.device.passed(self.end)

    def seconds(self) -> float:
        """That the device had it for, once it is done."""
        return self.device.seconds(self.start, self.end)


class Device(Protocol):
    """A place that runs layers."""

    kind: str
    """``cpu`` or ``cuda``."""
    name: str
    """What the maker calls it."""
    backend: str
    """Of torch.distributed."""
    count: int
    """Ranks that can have one of these to themselves: GPUs of this machine, or cores."""
    memory: float | None
    """Bytes of each; None where they share it with everything else on the machine."""

    def select(self, index: int) -> None:
        """Makes one of them this process's own."""
        ...

    def unbound(self) -> AbstractContextManager[None]:
        """Threads that start meanwhile are not bound to what was selected, as those of a process group should not."""
        ...

    def torch_device(self, index: int = 0) -> "torch.device":
        """For tensors."""
        ...

    def synchronize(self) -> None:
        """Returns when all work given to the device is done."""
        ...

    def stamp(self) -> Any:
        """A point between what was given to the device before and what follows; read by :meth:`seconds`."""
        ...

    def seconds(self, earlier: Any, later: Any) -> float:
        """Between two stamps, once the device is done."""
        ...

    def passed(self, stamp: Any) -> bool:
        """Whether the device has got to a stamp; asks, and never waits."""
        ...

    def stream(self, priority: StreamPriority) -> Stream:
        """A new one, for the device that was selected."""
        ...

    def repeatable(self, *works: Callable[[], None]) -> tuple[Callable[[], None], ...]:
        """Each work as something that repeats without launching its kernels one by one: a CUDA graph.

        It keeps the priority of the stream that is current now, whatever stream repeats it. Stamps made inside are
        made anew by each repetition. All works are run in order some times first, then captured in that order. They
        share their memory, so what one frees is overwritten when another runs: one call per job. The CPU launches
        nothing, and gives the works themselves.
        """
        ...

    def arithmetic(self, precision: Precision) -> AbstractContextManager[None]:
        """While it is open, products and convolutions in 32 bits do, or do not, use TF32; torch.export then refuses.

        Raises:
            InvalidValueError: the device has no such arithmetic.
        """
        ...

    def free_memory(self) -> int:
        """Bytes that a new tensor may take."""
        ...

    def memory_use(self) -> tuple[int, int] | None:
        """Bytes held now and at the highest point since the last call; None where the device does not count."""
        ...

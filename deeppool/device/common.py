"""Device: where layers run, when they are done, and how long they took."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from deeppool.errors import DeviceUnavailableError, InvalidValueError

if TYPE_CHECKING:
    import torch


Precision = Literal["fp32", "tf32", "bf16", "fp16"]
"""Of products and convolutions: 32 bits; 32 bits with TF32's short mantissa; 16 bits, under autocast."""
AUTOCAST = ("bf16", "fp16")


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

    def repeatable(self, *works: Callable[[], None]) -> tuple[Callable[[], None], ...]:
        """Each work as something that repeats without launching its kernels one by one: a CUDA graph.

        Stamps made inside are made anew by each repetition. The works share their memory, so what one left is
        gone when another ran. The CPU launches nothing, and gives the works themselves.
        """
        ...

    def arithmetic(self, precision: Precision) -> AbstractContextManager[None]:
        """While it is open, products and convolutions in 32 bits do, or do not, use TF32.

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


def find_device(kind: str = "auto") -> Device:
    """``auto`` is CUDA where there is a GPU, else the CPU.

    Raises:
        DeviceUnavailableError: CUDA was asked for and is not there.
        InvalidValueError: another word.
    """
    from deeppool.device.cpu import CpuDevice
    from deeppool.device.cuda import CudaDevice, cuda_problem

    if kind not in ("auto", "cpu", "cuda"):
        raise InvalidValueError(f"device must be auto, cpu or cuda, got '{kind}'")
    problem = cuda_problem() if kind != "cpu" else None
    if kind == "cuda" and problem:
        raise DeviceUnavailableError(f"cuda was asked for, {problem} (use --device cpu, or see: deeppool env)")
    return CpuDevice() if kind == "cpu" or problem else CudaDevice()

"""Device: where layers run, and when they are done."""

from typing import TYPE_CHECKING, Protocol

from deeppool.errors import DeviceUnavailableError, InvalidValueError

if TYPE_CHECKING:
    import torch


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

    def torch_device(self, index: int = 0) -> "torch.device":
        """For tensors."""
        ...

    def synchronize(self) -> None:
        """Returns when all work given to the device is done."""
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

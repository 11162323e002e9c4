"""Selection of the device that a command, a measurement or a rank runs on."""

from deeppool.device.cpu import CpuDevice
from deeppool.device.cuda import CudaDevice, cuda_problem
from deeppool.device.protocol import Device
from deeppool.errors import DeviceUnavailableError, InvalidValueError


def find_device(kind: str = "auto") -> Device:
    """Returns the device of a kind; ``auto`` is CUDA where there is a GPU, else the CPU.

    Raises:
        DeviceUnavailableError: CUDA was requested and is not available.
        InvalidValueError: the kind is none of these.
    """
    if kind not in ("auto", "cpu", "cuda"):
        raise InvalidValueError(f"device must be auto, cpu or cuda, got '{kind}'")
    problem = cuda_problem() if kind != "cpu" else None
    if kind == "cuda" and problem:
        raise DeviceUnavailableError(f"cuda was requested, {problem} (use --device cpu, or see: deeppool env)")
    return CpuDevice() if kind == "cpu" or problem else CudaDevice()

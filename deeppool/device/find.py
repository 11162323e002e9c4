"""Selection of the device that a command, a measurement or a rank runs on."""

from typing import TYPE_CHECKING

from deeppool.device.cpu import CpuDevice
from deeppool.device.cuda import CudaDevice, cuda_problem
from deeppool.device.kinds import emulated_sheet, find_kind, kind_of_type
from deeppool.device.protocol import Device
from deeppool.errors import DeviceUnavailableError

if TYPE_CHECKING:
    import torch


def find_device(kind: str = "auto", *, instead: str = "--device cpu") -> Device:
    """Returns the device of a kind; ``auto`` is CUDA where there is a GPU, else the CPU.

    ``emulated:h200`` is an H200 in virtual time, and so for each GPU of :mod:`deeppool.device.datasheet`.

    Args:
        kind: name of the kind.
        instead: option that selects the CPU, for the message of the error.

    Raises:
        DeviceUnavailableError: CUDA was requested and is not available.
        InvalidValueError: the kind is none of these, or there is no data sheet of its GPU.
    """
    # An array is no name, and its comparison no truth value.
    if not (isinstance(kind, str) and kind == "auto") and find_kind(kind, also="auto").name == "emulated":
        from deeppool.device.emulated.device import emulated_device

        return emulated_device(emulated_sheet(kind))
    problem = cuda_problem() if kind != "cpu" else None
    if kind == "cuda" and problem:
        raise DeviceUnavailableError(f"cuda was requested, {problem} (use {instead}, or see: deeppool env)")
    return CpuDevice() if kind == "cpu" or problem else CudaDevice()


def device_of(place: "torch.device") -> Device:
    """Returns the device on which torch's tensors of ``place`` lie."""
    kind = kind_of_type(place.type).name
    if kind == "emulated":
        from deeppool.device.emulated.device import device_at

        return device_at(place.index or 0)
    return find_device(kind)

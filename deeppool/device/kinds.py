"""What differs between kinds of devices, for those who have no device at hand: planners, launchers, records."""

from dataclasses import dataclass
from typing import Annotated, get_args

from deeppool.device.datasheet import GPUS, GpuSheet, find_gpu
from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError

DeviceName = Annotated[str, "the message of find_kind names the devices"]
"""``cpu``, ``cuda``, ``emulated`` or ``emulated:GPU``; where a caller accepts it, ``auto``."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Facts of a kind of device."""

    name: str
    unit: str
    """Name of what one rank computes on."""
    backend: str
    """Backend of torch.distributed."""
    torch_type: str
    """Type of its torch device."""
    kernel_type: str
    """Type of the torch device whose kernels compute on it, and whose autocast applies."""
    on_gpus: bool
    """Whether a rank needs a GPU of the machine for itself."""
    on_cores: bool
    """Whether a rank computes on a core of its own, which processes share by the priorities of the operating system."""
    emulated: bool = False
    """Whether its times are those of no processor."""


KINDS = {
    kind.name: kind
    for kind in (
        DeviceKind("cpu", "CPU", "gloo", "cpu", "cpu", False, True),
        DeviceKind("cuda", "GPU", "nccl", "cuda", "cuda", True, False),
        DeviceKind("emulated", "emulated GPU", "gloo", "privateuseone", "cpu", False, False, emulated=True),
    )
}


def find_kind(name: str, *, also: str | None = None) -> DeviceKind:
    """Returns the facts of a kind of device; those of ``emulated:h200`` are those of ``emulated``.

    Args:
        name: name of the kind.
        also: another name that the caller accepts, for the message of the error.

    Raises:
        InvalidValueError: there is no such kind, or no data sheet of its GPU.
    """
    # Devices of torch and None are none.
    kind, colon, _ = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind not in KINDS or (colon and kind != "emulated"):
        accepted = [also] if also else []
        raise InvalidValueError(
            f"device must be one of {', '.join([*accepted, *KINDS])}, or emulated:GPU with a GPU of "
            f"{', '.join(GPUS)}, got {name!r}"
        )
    emulated_sheet(name)
    return KINDS[kind]


def kind_of_type(torch_type: str) -> DeviceKind:
    """Returns the facts of the kind of device that a type of torch device is."""
    return next(kind for kind in KINDS.values() if kind.torch_type == torch_type)


def graphs_name(device: str) -> str:
    """Returns what a kind of device calls captured work."""
    return "CUDA graphs" if device == "cuda" else f"graphs of device {device}"


def check_common_clock(device: str) -> None:
    """Checks that the times of several processes on a device can be compared.

    Raises:
        InvalidValueError: they are virtual.
    """
    if find_kind(device).emulated and emulated_sheet(device) is not None:
        raise InvalidValueError(
            f"ranks on device {device} cannot be timed together: each process has a virtual clock of its own (use "
            "device emulated, or simulate a plan: deeppool simulate)"
        )


def check_precision(precision: str) -> None:
    """Raises InvalidValueError for a precision that there is not, which would be measured as fp32."""
    if precision not in get_args(Precision):
        raise InvalidValueError(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r}")


def emulated_sheet(name: str) -> GpuSheet | None:
    """Returns the data sheet of the GPU that ``emulated:GPU`` emulates in virtual time; None for other devices.

    Raises:
        InvalidValueError: there is no data sheet of the GPU.
    """
    _, colon, gpu = name.partition(":")
    return find_gpu(gpu) if colon else None

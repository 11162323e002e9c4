"""Estimate of the optimizer's update from memory bandwidth, for profiles that did not measure it.

SGD with momentum reads a parameter, its gradient and its momentum, and writes two of them: five times the bytes of the
parameters, which are fp32 under autocast too.
"""

from deeppool.device.datasheet import GPUS, sheet_of
from deeppool.device.kinds import find_kind

ACCESSES = 5
"""Bytes moved per byte of parameters."""
CPU_BANDWIDTH = 12.5e9
"""Bytes per second, assumed for a core of a server and not measured: `deeppool profile` measures the update itself."""


def estimated_update_per_byte(device: str, device_name: str) -> float:
    """Returns the seconds of an update per byte of parameters.

    Args:
        device: ``cpu`` or ``cuda``.
        device_name: name of the device; a GPU without a data sheet counts as the slowest one that has one.
    """
    if find_kind(device).on_cores:
        return ACCESSES / CPU_BANDWIDTH
    sheet = sheet_of(device_name)
    return ACCESSES / (min(sheet.bandwidth for sheet in GPUS.values()) if sheet is None else sheet.bandwidth)

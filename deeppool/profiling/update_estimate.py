"""Estimate of the optimizer's update from memory bandwidth, for profiles that did not measure it.

SGD with momentum reads a parameter, its gradient and its momentum, and writes two of them: five times the bytes of the
parameters, which are fp32 under autocast too.
"""

import re

from deeppool.device.datasheet import GPUS, GpuSheet
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
    words = re.split(r"[ -]", device_name)
    of_model = [sheet for sheet in GPUS.values() if _model(sheet) in words]
    if not of_model:
        return ACCESSES / min(sheet.bandwidth for sheet in GPUS.values())
    return ACCESSES / max(of_model, key=lambda sheet: len({*re.split(r"[ -]", sheet.title)} & {*words})).bandwidth


def _model(sheet: GpuSheet) -> str:
    """Returns the word that names the model, such as ``A100`` or ``3090``."""
    return sheet.name.partition("-")[0].removeprefix("rtx").upper()

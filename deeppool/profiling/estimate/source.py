"""What kernel times are estimated from: the data sheet of a GPU, or the calibration of a device."""

from collections.abc import Sequence
from os.path import isfile
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from deeppool.base import serialization
from deeppool.device.calibration import SUBSTITUTES, Calibration, family
from deeppool.device.datasheet import GpuSheet, gpu_sheet
from deeppool.device.kernel import Kernel
from deeppool.device.kinds import check_precision
from deeppool.device.protocol import Precision
from deeppool.device.roofline import ACCURACY, FITTED, Columns
from deeppool.errors import InvalidValueError
from deeppool.profiling.update_estimate import ACCESSES


class KernelTimes(Protocol):
    """Estimates of kernels on one device in one precision."""

    device: str
    device_name: str
    precision: Precision
    threads: int
    error: float
    update_per_byte: float

    def seconds(self, kernels: Sequence[Kernel]) -> NDArray[np.float64]:
        """Returns the seconds of each kernel."""
        ...

    def method(self, kernels: Sequence[Kernel]) -> str:
        """Describes how the times are estimated, their known error, and of which kernels too little is known."""
        ...


def kernel_times(gpu: str | Path | GpuSheet | Calibration, precision: Precision | None) -> KernelTimes:
    """Returns the estimates of a GPU by its name or data sheet, or of a device by its calibration.

    Args:
        gpu: either, or a file of either.
        precision: None: tf32 by a data sheet, and that of a calibration.

    Raises:
        InvalidValueError: unknown GPU, one without products in the precision, or another precision than that of the
            calibration.
        DocumentError: the file is neither.
    """
    if isinstance(gpu, str | Path) and isfile(gpu) and _is_calibration(gpu):
        gpu = serialization.read(gpu, Calibration)
    if not isinstance(gpu, Calibration):
        return SheetTimes(gpu_sheet(gpu), precision or "tf32")
    if precision not in (None, gpu.precision):
        raise InvalidValueError(
            f"{gpu.device_name} was calibrated in {gpu.precision}, not in {precision} "
            f"(deeppool calibrate --precision {precision})"
        )
    return CalibratedTimes(gpu)


def _is_calibration(path: str | Path) -> bool:
    return serialization.read_object(path).get("format") == f"deeppool/{Calibration.KIND}"


class SheetTimes:
    """Kernel times by a data sheet (:mod:`deeppool.device.roofline`)."""

    device, threads = "cuda", 1

    def __init__(self, sheet: GpuSheet, precision: Precision) -> None:
        """Takes the rates of a data sheet in a precision.

        Raises:
            InvalidValueError: the GPU has no products in the precision.
        """
        check_precision(precision)
        if precision == "bf16":
            sheet.check_bf16()
        self._sheet, self.precision = sheet, precision
        self.device_name, self.error = sheet.title, ACCURACY[precision].median
        self.update_per_byte = ACCESSES / sheet.bandwidth

    def seconds(self, kernels: Sequence[Kernel]) -> NDArray[np.float64]:
        """Returns the seconds of each kernel."""
        return FITTED.seconds(Columns.of(kernels), self._sheet, tf32=self.precision == "tf32")

    def method(self, kernels: Sequence[Kernel]) -> str:
        """Describes the cost model and its error on published throughputs."""
        known, sheet = ACCURACY[self.precision], self._sheet
        opaque = sorted({kernel.operator for kernel in kernels if "::" in kernel.operator and not kernel.flops})
        return (
            f"estimated, nothing was run: launch + bytes + waves of tiles of each kernel, by the data sheet of "
            f"{sheet.title} (products in {self.precision}); iteration times {known}"
            f"{'' if sheet.name in known.gpus else f'; {sheet.title} was not among these GPUs'}"
            + ("; counted by their bytes alone, so perhaps too short: " + ", ".join(opaque) if opaque else "")
        )


class CalibratedTimes:
    """Kernel times by the calibration of a device (:mod:`deeppool.device.calibration`)."""

    def __init__(self, calibration: Calibration) -> None:
        """Takes the rates of a calibration in its precision."""
        self._calibration = calibration
        self.device, self.device_name = calibration.device, calibration.device_name
        self.precision, self.threads = calibration.precision, calibration.threads
        self.error, self.update_per_byte = calibration.error, calibration.update_per_byte

    def seconds(self, kernels: Sequence[Kernel]) -> NDArray[np.float64]:
        """Returns the seconds of each kernel."""
        return self._calibration.seconds(kernels)

    def method(self, kernels: Sequence[Kernel]) -> str:
        """Describes the calibration, and which operators it did not measure."""
        found = self._calibration
        known = {cost.family for cost in found.costs}
        missing = sorted({family(kernel) for kernel in kernels} - known)
        return (
            f"estimated, the model was not run: sizes of each kernel at rates measured on {found.networks} networks "
            f"on {found.date}, each of which was estimated from the others within {100 * found.error:.0f} % in the "
            f"median"
            + (
                f"; not measured, counted like {', '.join(SUBSTITUTES.values())}: {', '.join(missing)}"
                if missing
                else ""
            )
        )

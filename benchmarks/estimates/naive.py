"""The plain roofline, with which the estimates are compared."""

import numpy as np
from numpy.typing import NDArray

from deeppool.device.datasheet import GpuSheet
from deeppool.device.roofline import Columns, peaks

Array = NDArray[np.float64]


def naive_seconds(columns: Columns, gpu: GpuSheet, *, tf32: bool = True) -> Array:
    """Returns the seconds by the plain roofline: the longer of FLOPs at the peak and bytes at the memory bandwidth.

    No estimate is below it, as bandwidth and products only lose by what kernels reach.
    """
    peak = peaks(columns, gpu, tf32=tf32)
    result: Array = np.maximum(columns.flops / peak, columns.bytes / gpu.bandwidth)
    return result

"""GPU-second amplification: what parallel time costs against one GPU (DeepPool, section 4)."""

import math

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-9
"""Relative tolerance: a layer exactly at its limit keeps it, whatever the order of the additions."""


def amplification(time: float, gpu_count: int, single_gpu_time: float) -> float:
    """Returns time x gpu_count / single_gpu_time."""
    return time * gpu_count / single_gpu_time


def time_allowance(
    limit: float, gpu_count: NDArray[np.float64], single_gpu_time: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the longest time of a layer on ``gpu_count`` GPUs that keeps the limit."""
    if np.isinf(limit):
        return np.full_like(single_gpu_time / gpu_count, np.inf)
    return limit * single_gpu_time / gpu_count * (1 + TOLERANCE)


def format_limit(limit: float) -> str:
    """Returns a limit in few digits that is no lower, beyond the search's tolerance: it permits the same plan."""
    least = math.ceil(1e4 * limit * (1 - TOLERANCE)) / 1e4
    return f"{least:.2f}" if least == round(least, 2) else f"{least:.4f}"

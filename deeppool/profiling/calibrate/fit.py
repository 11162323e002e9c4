"""Costs of kernel families from measured times of layers, each of which is a sum over several kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deeppool.device.calibration import RATES, FamilyCost, family, known_family, sizes
from deeppool.device.kernel import Kernel

Array = NDArray[np.float64]

CLOCK_ERROR = 20e-6
"""Seconds by which a measured time may be off whatever its length."""
LEAST_ERROR = 0.03
"""Relative errors below this count alike: nothing is measured better."""
REWEIGHTINGS = 4
"""Solutions that weight each time by its error in the solution before, which minimises absolute errors."""
SWEEPS = 100


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """Measured seconds of the forward or the backward of a layer, and its kernels."""

    kernels: tuple[Kernel, ...]
    seconds: float


def fit(measured: Sequence[MeasuredPart]) -> tuple[FamilyCost, ...]:
    """Returns the costs that minimise the mean relative error of the measured times."""
    names = sorted({family(kernel) for layer in measured for kernel in layer.kernels})
    position = {name: len(RATES) * index for index, name in enumerate(names)}
    matrix = np.zeros((len(measured), len(RATES) * len(names)))
    for row, layer in zip(matrix, measured, strict=True):
        for kernel in layer.kernels:
            start = position[family(kernel)]
            row[start : start + len(RATES)] += sizes(kernel)
    seconds = np.array([layer.seconds for layer in measured])
    scale, weights = seconds + CLOCK_ERROR, np.ones(len(measured))
    rates = np.zeros(matrix.shape[1])
    for _ in range(REWEIGHTINGS):
        rates = nonnegative_least_squares(matrix * (weights / scale)[:, None], seconds / scale * weights)
        errors = np.abs(matrix @ rates - seconds) / scale
        weights = 1 / np.sqrt(np.maximum(errors, LEAST_ERROR))
    return tuple(FamilyCost(name, *map(float, rates[at : at + len(RATES)])) for name, at in position.items())


def nonnegative_least_squares(matrix: Array, target: Array) -> Array:
    """Returns the x >= 0 that minimises ``|matrix x - target|``, by descent along one coordinate after another."""
    length = np.sqrt((matrix**2).sum(axis=0))
    used = np.flatnonzero(length)
    scaled = matrix[:, used] / length[used]
    products, wanted = scaled.T @ scaled, scaled.T @ target
    found = np.zeros(len(used))
    for _ in range(SWEEPS):
        before = found.copy()
        for index in range(len(used)):
            found[index] = max(0.0, found[index] + wanted[index] - products[index] @ found)
        if np.abs(found - before).max(initial=0.0) <= 1e-9 * np.abs(found).max(initial=1e-300):
            break
    result = np.zeros(matrix.shape[1])
    result[used] = found / length[used]
    return result


def estimated_seconds(costs: Sequence[FamilyCost], layers: Sequence[MeasuredPart]) -> float:
    """Returns the seconds of all layers together by given costs."""
    by_name = {cost.family: cost for cost in costs}
    return sum(by_name[known_family(k, by_name)].seconds(k) for layer in layers for k in layer.kernels)

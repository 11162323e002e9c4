"""Fits what kernels reach of a data sheet's peaks to measured layer times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.estimates.a100_layers import Sample
from benchmarks.estimates.naive import naive_seconds
from deeppool.device.datasheet import GpuSheet, find_gpu
from deeppool.device.roofline import FITTED, Columns, Efficiency, peaks

Array = NDArray[np.float64]
A100 = find_gpu("a100-40")
START = {
    "launch": 5e-6,
    "window_reads": 4.0,
    "window_reads_backward": 1.0,
    "cache": 32.0,
    "depth": 1000.0,
    "weights": 0.5,
    "pointwise_weights": 0.2,
}
"""Coefficients that are fitted to layer times, and where the search starts; these have no depthwise convolutions."""
ROUNDS = 12
STEPS = 1500


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Samples for all to be estimated at once."""

    samples: tuple[Sample, ...]
    columns: Columns
    starts: NDArray[np.intp]
    measured: Array

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "Table":
        """The table of some samples."""
        counts = [len(sample.kernels) for sample in samples]
        return cls(
            tuple(samples),
            Columns.of([kernel for sample in samples for kernel in sample.kernels]),
            np.cumsum([0, *counts[:-1]]),
            np.array([sample.seconds for sample in samples]),
        )

    def total(self, seconds: Array) -> Array:
        """Seconds per sample of seconds per kernel."""
        result: Array = np.add.reduceat(seconds, self.starts)
        return result


Model = Callable[[Table, GpuSheet], Array]
"""Estimated seconds of each sample."""


def tiled(efficiency: Efficiency) -> Model:
    """The model of deeppool.device.roofline."""
    return lambda table, gpu: table.total(efficiency.seconds(table.columns, gpu))


def naive(table: Table, gpu: GpuSheet) -> Array:
    """The roofline alone."""
    return table.total(naive_seconds(table.columns, gpu))


def three_parameters(launch: float, compute: float, memory: float) -> Model:
    """Launch + FLOPs + bytes, the last two at a fixed share of their peaks."""

    def model(table: Table, gpu: GpuSheet) -> Array:
        peak = peaks(table.columns, gpu)
        return table.total(
            launch + table.columns.flops / (peak * compute) + table.columns.bytes / (gpu.bandwidth * memory)
        )

    return model


def fit_tiled(samples: Sequence[Sample]) -> Efficiency:
    """The coefficients of least error on some samples."""

    def with_values(*values: float) -> Efficiency:
        return replace(FITTED, **dict(zip(START, values, strict=True)))

    return with_values(*fit(lambda *values: tiled(with_values(*values)), tuple(START.values()), samples))


def fit_three_parameters(samples: Sequence[Sample]) -> Model:
    """The three-parameter model of least error on some samples."""
    return three_parameters(*fit(three_parameters, (5e-6, 0.7, 0.5), samples))


def fit(family: Callable[..., Model], start: tuple[float, ...], samples: Sequence[Sample]) -> tuple[float, ...]:
    """Positive parameters with the least mean of abs(log(estimated / measured)), each model counting the same.

    Layers that are equal in a model count once, and forward and backward apart where they were measured apart.
    """
    apart = {(sample.model, sample.layer, sample.batch) for sample in samples if sample.part == "forward"}
    kept = {
        (sample.model, sample.layer, sample.batch, sample.part): sample
        for sample in samples
        if sample.part != "both" or (sample.model, sample.layer, sample.batch) not in apart
    }
    table = Table.of(list(kept.values()))
    names = [sample.model for sample in table.samples]
    weights = np.array([1 / names.count(name) for name in names])
    target = np.log(table.measured)

    def loss(logarithms: Array) -> float:
        with np.errstate(over="ignore"):
            estimated = family(*np.exp(logarithms))(table, A100)
        return float(np.average(np.abs(np.log(estimated) - target), weights=weights))

    best = np.log(np.array(start))
    for turn in range(ROUNDS):
        best = nelder_mead(loss, best, step=0.3 / (turn + 1))
    return tuple(float(value) for value in np.exp(best))


def nelder_mead(loss: Callable[[Array], float], start: Array, step: float) -> Array:
    """A local minimum by the simplex of Nelder and Mead (The Computer Journal, 1965)."""
    points = np.vstack([start, start + step * np.eye(len(start))])
    values = np.array([loss(point) for point in points])
    for _ in range(STEPS):
        order = np.argsort(values, kind="stable")
        points, values = points[order], values[order]
        if values[-1] - values[0] < 1e-7:
            break
        centre = points[:-1].mean(axis=0)
        worst = points[-1]
        tried = [(centre + factor * (centre - worst)) for factor in (1.0, 2.0, 0.5, -0.5)]
        reflected = loss(tried[0])
        if reflected < values[0]:
            expanded = loss(tried[1])
            points[-1], values[-1] = (tried[1], expanded) if expanded < reflected else (tried[0], reflected)
        elif reflected < values[-2]:
            points[-1], values[-1] = tried[0], reflected
        else:
            contraction = tried[2] if reflected < values[-1] else tried[3]
            contracted = loss(contraction)
            if contracted < min(reflected, values[-1]):
                points[-1], values[-1] = contraction, contracted
            else:
                points[1:] = points[0] + 0.5 * (points[1:] - points[0])
                values[1:] = [loss(point) for point in points[1:]]
    return points[int(np.argmin(values))]

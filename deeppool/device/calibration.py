"""Calibration of a device: what its measured kernels cost by their sizes, in place of the peaks of a data sheet.

Kernels are grouped into families: the same operator, and for convolutions the same kind. The seconds of a kernel are a
sum over its sizes, each at a rate of its family: a launch, bytes, bytes beyond what caches hold, FLOPs, FLOPs of
columns rounded up to a whole vector, bytes of weights, and reads through windows. A rate is never negative.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from deeppool.device.kernel import Kernel
from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError

Array = NDArray[np.float64]

FAR_BYTES = 2**23
"""Bytes of one kernel beyond which memory has to deliver them, not a cache."""
VECTOR = 16
"""Columns of a product that are computed at a time."""
SUBSTITUTES = {"memory": "mul", "window": "avg_pool2d", "product": "mm", "depthwise": "depthwise convolution"}
"""Families for operators that were not measured, by kind of kernel."""


def family(kernel: Kernel) -> str:
    """Returns the family of a kernel; an operator that works in place belongs to that of the one that does not."""
    name = kernel.operator.removesuffix("_")
    if kernel.kind == "product" and "dot_product" not in name:
        return "mm"
    if kernel.kind == "depthwise":
        return f"depthwise {name}"
    return f"pointwise {name}" if kernel.pointwise else name


def sizes(kernel: Kernel) -> tuple[float, ...]:
    """Returns the sizes of a kernel, in the order of the rates of a :class:`FamilyCost`."""
    vectors = -(-kernel.columns // VECTOR) * VECTOR / max(kernel.columns, 1)
    return (
        1.0,
        kernel.bytes,
        max(0, kernel.bytes - FAR_BYTES),
        kernel.flops,
        kernel.flops * vectors if kernel.kind == "convolution" else 0.0,
        kernel.weight_bytes,
        kernel.window_reads,
    )


@dataclass(frozen=True, slots=True)
class FamilyCost:
    """Seconds by size of the kernels of one family."""

    family: str
    launch: float
    """Seconds of each kernel."""
    per_byte: float
    """Seconds per byte of inputs and outputs."""
    per_far_byte: float
    """Seconds more per byte beyond :data:`FAR_BYTES`."""
    per_flop: float
    per_vector_flop: float
    """Seconds per FLOP of a convolution whose columns are rounded up to :data:`VECTOR`."""
    per_weight_byte: float
    per_window_read: float

    def __post_init__(self) -> None:
        for name in RATES:
            if not getattr(self, name) >= 0:
                raise InvalidValueError(f"{name} of {self.family} must not be negative, got {getattr(self, name):g}")

    def seconds(self, kernel: Kernel) -> float:
        """Returns the seconds of one kernel."""
        return float(sum(getattr(self, name) * size for name, size in zip(RATES, sizes(kernel), strict=True)))


RATES = tuple(field.name for field in fields(FamilyCost))[1:]


@dataclass(frozen=True)
class Calibration:
    """Measured costs of kernels on one device, of which estimates are made as from a GPU's data sheet."""

    KIND: ClassVar[str] = "calibration"

    device: str
    """Kind of device: ``cpu``, ``cuda``, ``emulated``, or ``emulated:h200`` and so for other GPUs."""
    device_name: str
    precision: Precision
    threads: int
    """CPU threads that computed a kernel."""
    costs: tuple[FamilyCost, ...]
    update_per_byte: float
    """Seconds of the optimizer's update, SGD with momentum, per byte of parameters."""
    error: float
    """Median error of the iteration times of measured networks, each estimated from all the others."""
    networks: int
    """Number of measured networks."""
    date: str
    versions: dict[str, str]

    def __post_init__(self) -> None:
        known = {cost.family for cost in self.costs}
        missing = {*SUBSTITUTES.values()} - known
        if missing:
            raise InvalidValueError(f"costs hold no {', '.join(sorted(missing))} (calibrate the device again)")
        if self.update_per_byte < 0:
            raise InvalidValueError(f"update_per_byte must not be negative, got {self.update_per_byte:g} seconds")
        object.__setattr__(self, "_costs", {cost.family: cost for cost in self.costs})

    def __str__(self) -> str:
        return (
            f"{self.device_name} ({self.device}, {self.precision}, {self.threads} threads): {len(self.costs)} families "
            f"of kernels from {self.networks} networks, each estimated from the others within "
            f"{100 * self.error:.0f} % in the median"
        )

    def seconds(self, kernels: Sequence[Kernel]) -> Array:
        """Returns the seconds of each kernel; one that was not measured counts as :data:`SUBSTITUTES` say."""
        costs: dict[str, FamilyCost] = self._costs  # type: ignore[attr-defined]
        return np.array([costs[known_family(kernel, costs)].seconds(kernel) for kernel in kernels], dtype=np.float64)


def known_family(kernel: Kernel, known: Iterable[str]) -> str:
    """Returns the family of a kernel, or the one that stands for it if it was not measured."""
    name = family(kernel)
    if name in known:
        return name
    plain = name.removeprefix("pointwise ")
    return plain if plain in known else SUBSTITUTES.get(kernel.kind, "convolution")

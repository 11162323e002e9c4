"""Synthetic kernels by arithmetic intensity and duration.

Low intensity: sums of long vectors. Higher: batches of products of square matrices, the larger the more FLOP per byte.
The duration is set by the length of the vectors, or the size of the batch; every call reads another part of a large
buffer, so that nothing is left in a cache from the last one.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from deeppool.base.number_checks import real_number, whole_number
from deeppool.device.kinds import emulated_sheet
from deeppool.device.protocol import Device
from deeppool.errors import InvalidValueError

SUM_INTENSITY = 1 / 12
"""FLOP per byte of c = a + b in 32 bits."""
BATCHES = 7
"""Timed batches of a kernel that is calibrated."""
_EXAMPLE = {"matrices": "16, 128", "durations": "0.0002, 0.002"}


@dataclass(frozen=True, slots=True)
class KernelSizes:
    """Sizes of the kernels on a kind of processor, unless others are asked for."""

    matrices: tuple[int, ...]
    """Rows of the square matrices; N rows give N / 6 FLOP per byte."""
    durations: tuple[float, ...]
    """Seconds of a kernel."""
    buffer: int
    """Numbers in each of three buffers: more than a cache holds."""


CPU = KernelSizes((16, 128), (2e-4, 2e-3, 2e-2), 2**25)
EMULATED = KernelSizes((16, 128), (2e-4, 2e-3), 2**25)
GPU = KernelSizes((16, 128, 1024), (2e-5, 2e-4, 2e-3), 2**28)


def kernel_sizes(device: Device) -> KernelSizes:
    """Returns the sizes for a device: those of a GPU if it has memory of its own.

    A measurement on a device ends when the kernels that are queued do: those of an emulated one without memory of its
    own, which take a CPU's time, have no long class.
    """
    if device.memory is not None:
        return GPU
    return EMULATED if device.asynchronous else CPU


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel to be made: a sum, or products of matrices of some size."""

    rows: int | None
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOP per byte, where each number is read or written once."""
        return SUM_INTENSITY if self.rows is None else self.rows / 6


def kernel_specs(
    sizes: KernelSizes, matrices: Sequence[int] | None = None, durations: Sequence[float] | None = None
) -> list[KernelSpec]:
    """Returns all classes, in the order of an Interference record.

    Args:
        sizes: those of the device.
        matrices: rows of the matrices; sums are measured in any case. Those of ``sizes`` unless given.
        durations: seconds of the kernels; those of ``sizes`` unless given.

    Raises:
        InvalidValueError: matrices or durations that are not positive, or matrices larger than the buffers.
    """
    rows = sizes.matrices if matrices is None else sorted({whole_number("matrices", rows, None) for rows in matrices})
    lengths = (
        sizes.durations if durations is None else sorted({real_number("durations", seconds) for seconds in durations})
    )
    for name, values in (("matrices", rows), ("durations", lengths)):
        if min(values, default=1) <= 0 or (name == "durations" and not values):
            raise InvalidValueError(
                f"{name} must be positive numbers, got {list(values)} (for example {_EXAMPLE[name]})"
            )
    most = math.isqrt(sizes.buffer)
    if max(rows, default=0) > most:
        raise InvalidValueError(
            f"matrices must have at most {most} rows, as many as the buffers on this device hold, got {list(rows)} "
            f"(for example {_EXAMPLE['matrices']})"
        )
    return [KernelSpec(size, seconds) for size in (None, *rows) for seconds in lengths]


def buffers(device: Device) -> list[torch.Tensor]:
    """Returns two buffers to read and one to write, for all kernels of a job."""
    return [torch.rand(kernel_sizes(device).buffer, device=device.torch_device()) for _ in range(3)]


def calibrate(kind: KernelSpec, held: list[torch.Tensor], device: Device) -> int:
    """Returns how many numbers to add, or matrices to multiply, take about the duration of the class."""
    unit = 1 if kind.rows is None else kind.rows**2
    most = held[0].numel() // unit
    count = 4096 if kind.rows is None else 1
    for _ in range(20):
        count = min(count, most)
        seconds = _time(launcher(kind, held, count), device)
        if count == most or abs(seconds / kind.seconds - 1) < 0.1 or (count == 1 and seconds > kind.seconds):
            return count
        count = max(1, round(count * min(kind.seconds / seconds, 16.0)))
    return count


def launcher(kind: KernelSpec, held: list[torch.Tensor], count: int) -> Callable[[], object]:
    """Returns a function that runs the kernel, each time on other parts of the buffers."""
    shape = (count,) if kind.rows is None else (count, kind.rows, kind.rows)
    size = count if kind.rows is None else count * kind.rows**2
    parts = [[one[start : start + size].view(shape) for one in held] for start in _starts(held[0].numel(), size)]
    turns = itertools.cycle(parts)

    def run() -> object:
        left, right, out = next(turns)
        return torch.add(left, right, out=out) if kind.rows is None else torch.bmm(left, right, out=out)

    return run


def _starts(length: int, size: int) -> range:
    """Returns the starts of at most 64 parts that do not overlap."""
    return range(0, length - size + 1, max(size, length // 64))


def _time(run: Callable[[], object], device: Device) -> float:
    """Returns the median of batches, each long enough to time, without the cost of waiting for the device."""
    run()
    device.synchronize()
    times: list[float] = []
    # Virtual time has no noise.
    for _ in range(1 if emulated_sheet(device.kind) is not None else BATCHES):
        started, repeats = device.clock.now(), 0
        while repeats < 3 or (device.clock.now() - started < 1e-3 and repeats < 100):
            run()
            repeats += 1
        device.synchronize()
        times.append((device.clock.now() - started) / repeats)
    return median(times)

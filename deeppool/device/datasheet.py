"""GPU data sheets: the peak rates that estimates start from."""

import os
import re
from dataclasses import dataclass, fields
from typing import ClassVar

from deeppool.base import serialization
from deeppool.errors import InvalidValueError
from deeppool.units import format_rate


@dataclass(frozen=True, slots=True)
class Reach:
    """Fractions of a data sheet's peaks that large kernels reach on a GPU, beside what the cache limits.

    Those of fp32 products, and the L4's bandwidth, follow from measured kernels of each GPU; a GPU without any has the
    median of the others. Products in the tensor cores need no such number: the cache bounds them
    (benchmarks/estimates).
    """

    fp32: float = 0.89
    tf32: float = 1.0
    half: float = 1.0
    bandwidth: float = 0.872


@dataclass(frozen=True, slots=True)
class GpuSheet:
    """Data sheet of one GPU. Products are dense: the sheets' figures "with sparsity" are halved.

    A file of one, saved by :func:`deeppool.save`, is as good as a name: :func:`gpu_sheet`.
    """

    KIND: ClassVar[str] = "gpu"

    name: str
    """Name accepted by :func:`find_gpu`."""
    title: str
    multiprocessors: int
    clock: float
    """Cycles per second at which the products' peaks hold."""
    fp32: float
    """Operations per second outside the tensor cores; a multiply-add is two."""
    tf32: float | None
    """Operations per second on fp32 numbers rounded to TF32 in the tensor cores; None where these have no TF32."""
    half: float
    """Operations per second on bf16 and fp16 in the tensor cores, added up in fp32."""
    bandwidth: float
    """Memory bandwidth, in bytes per second."""
    memory: float
    """Memory size, in bytes (decimal)."""
    cache: float
    """Size of the second-level cache, in bytes."""
    host_bandwidth: float
    """Bytes per second to or from the host: PCIe with 16 lanes, in one direction."""
    partition: tuple[int, int]
    """Fewest multiprocessors of a green context, and the step above that."""
    source: str
    reach: Reach = Reach()
    bf16: bool = True
    """Whether its tensor cores multiply numbers in bf16, too, and not in fp16 alone."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in (int, float) and value <= 0:
                raise InvalidValueError(f"{field.name} of GPU '{self.name}' must be positive, got {value:g}")
        for field in fields(self.reach):
            value = getattr(self.reach, field.name)
            if not 0 < value <= 1:
                raise InvalidValueError(f"reach.{field.name} of GPU '{self.name}' must be within 0…1, got {value:g}")

    def __str__(self) -> str:
        tf32 = "no TF32" if self.tf32 is None else f"TF32 {format_rate(self.tf32 / 1e12)}"
        return (
            f"{self.name}: {self.title}, {self.multiprocessors} multiprocessors, {self.memory / 1e9:.0f} GB at "
            f"{self.bandwidth / 1e12:.3g} TB/s; fp32 {format_rate(self.fp32 / 1e12)}, {tf32}, "
            f"{'bf16/' * self.bf16}fp16 {format_rate(self.half / 1e12)} TFLOP/s ({self.source})"
        )

    def check_bf16(self) -> None:
        """Raises InvalidValueError if the tensor cores multiply no numbers in bf16, which would count as fp16."""
        if not self.bf16:
            raise InvalidValueError(f"the tensor cores of {self.title} multiply no bf16 numbers (take fp16)")

    def granted(self, multiprocessors: int) -> int:
        """Returns how many multiprocessors a green context has that asks for some: whole steps, within the GPU."""
        least, step = self.partition
        return min(max(least, -(-multiprocessors // step) * step), self.multiprocessors // step * step)


# The clock of the peaks is the half-precision peak over the multiprocessors and what each does a cycle: 4,096
# operations (H100, H200), 8,192 (B200), 2,048 (A100), 1,024 (V100, L4, L40S) or 512 (RTX 3090, RTX 4090).
# Caches: the architecture white papers. To the host: PCIe 3, 4 and 5. Partitions: CUDA's driver API, "Green Contexts",
# by compute capability: 7.x, 8.x, and 9.0 and later.
_VOLTA, _AMPERE, _HOPPER = (15.75e9, (2, 2)), (31.5e9, (4, 2)), (63e9, (8, 8))
_OF_A100 = "NVIDIA A100 data sheet; multiprocessors and cache from the A100 architecture white paper"
_OF_H100 = "data sheet; products, multiprocessors and cache from the H100 architecture white paper"
_OF_ADA = "NVIDIA Ada GPU architecture white paper"
_A100 = (108, 1.41e9, 19.5e12, 156e12, 312e12)
_H100 = (132, 1.83e9, 67e12, 494.7e12, 989.4e12)
_REACH_A100 = Reach(fp32=0.89)
GPUS = {
    sheet.name: sheet
    for sheet in (
        GpuSheet("a100-40", "NVIDIA A100 SXM4 40GB", *_A100, 1.555e12, 40e9, 40e6, *_AMPERE, _OF_A100, _REACH_A100),
        GpuSheet("a100-80", "NVIDIA A100 SXM4 80GB", *_A100, 2.039e12, 80e9, 40e6, *_AMPERE, _OF_A100, _REACH_A100),
        GpuSheet(
            "h100",
            "NVIDIA H100 SXM5",
            *_H100,
            3.35e12,
            80e9,
            50e6,
            *_HOPPER,
            f"NVIDIA H100 {_OF_H100}",
            Reach(fp32=0.73),
        ),
        GpuSheet(
            "h200",
            "NVIDIA H200 SXM",
            *_H100,
            4.8e12,
            141e9,
            50e6,
            *_HOPPER,
            f"NVIDIA H200 {_OF_H100}",
            Reach(fp32=0.73),
        ),
        GpuSheet(
            "b200",
            "NVIDIA B200 SXM",
            148,
            1.86e9,
            75e12,
            1.125e15,
            2.25e15,
            7.7e12,
            180e9,
            131e6,
            *_HOPPER,
            "third parties' lists of HGX B200 figures, which differ by up to 7 %; cache of both dies",
        ),
        GpuSheet(
            "h100-pcie",
            "NVIDIA H100 PCIe",
            114,
            1.62e9,
            51e12,
            378e12,
            756e12,
            2e12,
            80e9,
            50e6,
            *_HOPPER,
            f"NVIDIA H100 {_OF_H100}",
        ),
        GpuSheet(
            "v100",
            "Tesla V100-SXM2-32GB",
            80,
            1.53e9,
            15.7e12,
            None,
            125e12,
            900e9,
            32e9,
            6e6,
            *_VOLTA,
            "NVIDIA Tesla V100 GPU architecture white paper",
            Reach(fp32=0.92),
            bf16=False,
        ),
        GpuSheet(
            "rtx3090",
            "NVIDIA GeForce RTX 3090",
            82,
            1.695e9,
            35.6e12,
            35.6e12,
            71.2e12,
            936e9,
            24e9,
            6e6,
            *_AMPERE,
            "NVIDIA Ampere GA102 GPU architecture white paper",
        ),
        GpuSheet(
            "rtx4090",
            "NVIDIA GeForce RTX 4090",
            128,
            2.52e9,
            82.6e12,
            82.6e12,
            165.2e12,
            1.008e12,
            24e9,
            72e6,
            *_AMPERE,
            _OF_ADA,
        ),
        GpuSheet(
            "l4",
            "NVIDIA L4",
            60,
            1.97e9,
            30.3e12,
            60.5e12,
            121e12,
            300e9,
            24e9,
            48e6,
            *_AMPERE,
            f"NVIDIA L4 data sheet; multiprocessors and cache from the {_OF_ADA}",
            # Its 72 W do not sustain the clock of the peaks.
            Reach(fp32=0.3, bandwidth=0.78),
        ),
        GpuSheet(
            "l40s",
            "NVIDIA L40S",
            142,
            2.49e9,
            91.6e12,
            183e12,
            362e12,
            864e9,
            48e9,
            96e6,
            *_AMPERE,
            f"NVIDIA L40S data sheet; multiprocessors and cache from the {_OF_ADA}",
        ),
    )
}


def sheet_of(device_name: str) -> GpuSheet | None:
    """Returns the data sheet of a GPU by a driver's name, such as ``NVIDIA A100-SXM4-80GB``; None: there is none."""
    words = {*re.split(r"[ -]", device_name)}
    of_model = [sheet for sheet in GPUS.values() if sheet.name.partition("-")[0].removeprefix("rtx").upper() in words]
    return max(of_model, key=lambda sheet: len({*re.split(r"[ -]", sheet.title)} & words), default=None)


def find_gpu(name: str) -> GpuSheet:
    """Returns the data sheet of a GPU by its name, a key of :data:`GPUS`.

    Raises:
        InvalidValueError: another name.
    """
    if name.lower() not in GPUS:
        raise InvalidValueError(f"no data sheet of the GPU '{name}' is known; gpu must be one of {', '.join(GPUS)}")
    return GPUS[name.lower()]


def gpu_sheet(gpu: "str | os.PathLike[str] | GpuSheet") -> GpuSheet:
    """Returns a data sheet by the name of a GPU, or from a file.

    Raises:
        InvalidValueError: there is neither such a name nor such a file.
        DocumentError: the file is no data sheet.
    """
    if isinstance(gpu, GpuSheet):
        return gpu
    text = os.fspath(gpu)
    if text.endswith(".json") or os.path.exists(text):
        return serialization.read(text, GpuSheet)
    return find_gpu(text)

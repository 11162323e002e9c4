"""GPU data sheets: the peak rates that estimates start from."""

from dataclasses import dataclass

from deeppool.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class GpuSheet:
    """Data sheet of one GPU. Products are dense: the sheets' figures "with sparsity" are halved."""

    name: str
    """Name accepted by :func:`find_gpu`."""
    title: str
    multiprocessors: int
    clock: float
    """Cycles per second at which the products' peaks hold."""
    fp32: float
    """Operations per second outside the tensor cores; a multiply-add is two."""
    tf32: float
    """Operations per second on fp32 numbers rounded to TF32 in the tensor cores."""
    half: float
    """Operations per second on bf16 and fp16 in the tensor cores."""
    bandwidth: float
    """Memory bandwidth, in bytes per second."""
    memory: float
    """Memory size, in bytes (decimal)."""
    host_bandwidth: float
    """Bytes per second to or from the host: PCIe with 16 lanes, in one direction."""
    partition: tuple[int, int]
    """Fewest multiprocessors of a green context, and the step above that."""
    source: str

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.title}, {self.multiprocessors} multiprocessors, {self.memory / 1e9:.0f} GB at "
            f"{self.bandwidth / 1e12:.3g} TB/s; fp32 {self.fp32 / 1e12:.3g}, TF32 {self.tf32 / 1e12:.3g}, "
            f"bf16/fp16 {self.half / 1e12:.3g} TFLOP/s ({self.source})"
        )

    def granted(self, multiprocessors: int) -> int:
        """Returns how many multiprocessors a green context has that asks for some: whole steps, within the GPU."""
        least, step = self.partition
        return min(max(least, -(-multiprocessors // step) * step), self.multiprocessors // step * step)


# A multiprocessor does 2,048 (A100) or 4,096 (H100, H200) half-precision operations a cycle, so the clock of the
# peaks is the peak over that and over the number of multiprocessors.
_A100 = "NVIDIA A100 data sheet; multiprocessors from the A100 architecture white paper"
_HOPPER = "data sheet; products and multiprocessors from the H100 architecture white paper"
# To the host: PCIe 4 and 5. Partitions: CUDA's driver API, "Green Contexts", by compute capability: 8.x and 9.0.
_OF_A100, _OF_HOPPER = (31.5e9, (4, 2)), (63e9, (8, 8))
GPUS = {
    sheet.name: sheet
    for sheet in (
        GpuSheet(
            "a100-40", "NVIDIA A100 SXM4 40GB", 108, 1.41e9, 19.5e12, 156e12, 312e12, 1.555e12, 40e9, *_OF_A100, _A100
        ),
        GpuSheet(
            "a100-80", "NVIDIA A100 SXM4 80GB", 108, 1.41e9, 19.5e12, 156e12, 312e12, 2.039e12, 80e9, *_OF_A100, _A100
        ),
        GpuSheet(
            "h100",
            "NVIDIA H100 SXM5",
            132,
            1.83e9,
            67e12,
            494.7e12,
            989.4e12,
            3.35e12,
            80e9,
            *_OF_HOPPER,
            f"NVIDIA H100 {_HOPPER}",
        ),
        GpuSheet(
            "h200",
            "NVIDIA H200 SXM",
            132,
            1.83e9,
            67e12,
            494.7e12,
            989.4e12,
            4.8e12,
            141e9,
            *_OF_HOPPER,
            f"NVIDIA H200 {_HOPPER}",
        ),
    )
}


def find_gpu(name: str) -> GpuSheet:
    """Returns the data sheet of ``a100-40``, ``a100-80``, ``h100`` or ``h200``.

    Raises:
        InvalidValueError: another name.
    """
    if name.lower() not in GPUS:
        raise InvalidValueError(f"no data sheet of the GPU '{name}' is known; gpu must be one of {', '.join(GPUS)}")
    return GPUS[name.lower()]

"""Seconds of a kernel from a GPU's data sheet and what kernels reach of it: a roofline with waves of tiles.

A kernel takes its launch, and then:

- *memory*: its bytes at the share of the memory bandwidth that such kernels reach.
- *window* (pooling, depthwise convolution): the longer of its bytes and its reads through windows, of which a
  multiprocessor does a fixed number per cycle.
- *product*: the longer of its bytes and its tiles.
- *convolution*: its bytes and its tiles one after the other, for its kernels want channels last: activations and
  weights are first brought into that layout, read and written once more. Weights move slowly on that way, those of
  size-1 convolutions slower still.

*Tiles*: a result of ``rows`` x ``columns`` is cut into tiles, one a multiprocessor at a time, so the last wave may be
half empty. A tile takes, per step of its depth, the longer of its multiply-adds at the data sheet's peak and of
fetching one row and one column of its factors from the second-level cache, at a fixed number of bytes per cycle of a
multiprocessor. Where tiles are too few for the multiprocessors their depth is split, down to a least depth. The tile
size is the best of four.

The idea of tiles and waves is in NVIDIA's "Matrix Multiplication Background User's Guide", the roofline in Williams,
Waterman, Patterson (CACM 2009).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deeppool.device.datasheet import GpuSheet
from deeppool.profiling.estimate.kernels import Kernel

Array = NDArray[np.float64]

TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
"""Rows and columns of results that one multiprocessor computes at a time."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What kernels reach of a data sheet's peaks."""

    launch: float
    """Seconds that any kernel takes at least."""
    memory: float
    """Share of the memory bandwidth."""
    window_reads: float
    """Reads through windows per cycle of a multiprocessor."""
    window_reads_backward: float
    """The same, in a backward."""
    cache: float
    """Bytes per cycle that each multiprocessor gets from the second-level cache."""
    depth: float
    """Least depth of a tile whose depth is split."""
    weights: float
    """Share of the memory bandwidth with which a convolution's weights change their layout."""
    pointwise_weights: float
    """The same, of convolutions of size 1."""

    def seconds(self, columns: "Columns", gpu: GpuSheet, *, tf32: bool = True) -> Array:
        """Of each kernel.

        Args:
            columns: the kernels.
            gpu: that they run on.
            tf32: products and convolutions of fp32 numbers are rounded to TF32 and use the tensor cores.
        """
        x, bandwidth = columns, gpu.bandwidth
        moved = x.bytes / (bandwidth * self.memory)
        reads = np.where(x.backward, self.window_reads_backward, self.window_reads)
        pooled = x.window_reads / (reads * gpu.multiprocessors * gpu.clock)
        tiles = self._tiles(x, gpu, peaks(x, gpu, tf32=tf32))
        layout = 2 * x.layout_bytes / (bandwidth * self.memory)
        weights = 2 * x.weight_bytes / (bandwidth * np.where(x.pointwise, self.pointwise_weights, self.weights))
        result: Array = np.select(
            [x.kind == "memory", x.kind == "window", x.kind == "product"],
            [moved, np.maximum(moved, pooled), np.maximum(moved, tiles)],
            layout + weights + moved + tiles,
        )
        return self.launch + result

    def _tiles(self, x: "Columns", gpu: GpuSheet, peak: Array) -> Array:
        """Seconds of the tiles in their waves."""
        best = np.full(len(x.rows), np.inf)
        for height, width in TILES:
            tiles = np.ceil(x.rows / height) * np.ceil(x.columns / width) * x.count
            split = np.maximum(1, gpu.multiprocessors // np.maximum(tiles, 1))
            depth = np.maximum(x.depth / split, np.minimum(x.depth, self.depth))
            compute = 2 * height * width * gpu.multiprocessors / peak
            fetched = (np.minimum(height, x.rows) + np.minimum(width, x.columns)) * x.element_size
            step = np.maximum(compute, fetched / (self.cache * gpu.clock))
            best = np.minimum(best, np.ceil(tiles / gpu.multiprocessors) * depth * step)
        return best


FITTED = Efficiency(
    launch=5.42e-6,
    memory=0.872,
    window_reads=4.18,
    window_reads_backward=1.10,
    cache=27.2,
    depth=1384,
    weights=0.474,
    pointwise_weights=0.184,
)
"""Fitted to the layer times that DeepPool's authors published: convolutions, poolings and linear layers of VGG-16,
WideResNet-101-2 and Inception-v3 on an A100 (40 GB), each layer in a CUDA graph of its own, fp32 with TF32
products. ``python -m benchmarks.estimates.main`` fits them again. That they hold on other GPUs is an assumption:
the peaks change, the shares of them do not."""

ACCURACY = "on A100 layers over 100 us of models not fitted on: median error at most 7 %, 90th percentile 17 %"
"""Of FITTED's kind; the table is in benchmarks/estimates."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Kernels as columns of numbers, for all to be computed at once."""

    kind: NDArray[np.str_]
    backward: NDArray[np.bool_]
    bytes: Array
    flops: Array
    rows: Array
    columns: Array
    count: Array
    depth: Array
    element_size: Array
    layout_bytes: Array
    weight_bytes: Array
    pointwise: NDArray[np.bool_]
    window_reads: Array

    @classmethod
    def of(cls, kernels: Sequence[Kernel]) -> "Columns":
        """The table of some kernels."""

        def numbers(name: str) -> Array:
            return np.array([getattr(kernel, name) for kernel in kernels], dtype=np.float64)

        flops, rows, columns, count = (numbers(name) for name in ("flops", "rows", "columns", "count"))
        return cls(
            kind=np.array([kernel.kind for kernel in kernels], dtype=np.str_),
            backward=np.array(["backward" in kernel.operator for kernel in kernels], dtype=np.bool_),
            bytes=numbers("bytes"),
            flops=flops,
            rows=rows,
            columns=columns,
            count=count,
            # The multiply-adds behind each number of the result; a strided convolution's backward has a broken one.
            depth=flops / np.maximum(2 * rows * columns * count, 1),
            element_size=numbers("element_size"),
            layout_bytes=numbers("layout_bytes"),
            weight_bytes=numbers("weight_bytes"),
            pointwise=np.array([kernel.pointwise for kernel in kernels], dtype=np.bool_),
            window_reads=numbers("window_reads"),
        )


def peaks(columns: Columns, gpu: GpuSheet, *, tf32: bool = True) -> Array:
    """Operations per second that the data sheet promises each kernel."""
    half = columns.element_size <= 2
    tensor = half | tf32
    result: Array = np.where(tensor, np.where(half, gpu.half, gpu.tf32), gpu.fp32)
    return result


def naive_seconds(columns: Columns, gpu: GpuSheet, *, tf32: bool = True) -> Array:
    """The roofline alone: the longer of FLOPs at the peak and bytes at the memory bandwidth."""
    peak = peaks(columns, gpu, tf32=tf32)
    result: Array = np.maximum(columns.flops / peak, columns.bytes / gpu.bandwidth)
    return result

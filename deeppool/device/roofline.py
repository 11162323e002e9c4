"""Kernel times from a GPU's data sheet and fitted efficiencies: a roofline model with waves of tiles.

A kernel takes its launch time plus, by kind:

- *memory*: its bytes at the fraction of the memory bandwidth that such kernels reach.
- *window* (pooling): the longer of its bytes and its reads through windows, of which a multiprocessor does a fixed
  number per cycle.
- *depthwise* convolution: its bytes; the gradient of its weights as *window*.
- *product*: the longer of its bytes and its tiles.
- *convolution*: its bytes and its tiles one after the other, because its kernels use channels last: activations and
  weights are first converted to that layout, read and written once more. Weights are converted at a lower bandwidth,
  those of size-1 convolutions lower still. Nothing is converted for a model with channels last, nor in fp32, whose
  kernels use no tensor cores.

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
from deeppool.device.kernel import Kernel
from deeppool.device.protocol import Precision

Array = NDArray[np.float64]

TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
"""Rows and columns of results that one multiprocessor computes at a time."""
RESIDENT_BYTES = 2048 * 16
"""Bytes that a multiprocessor's 2,048 resident threads read or write at once, 16 each (A100 and H100 white papers)."""
RESIDENT_ROWS = 16
"""Rows that a multiprocessor normalises at once: 128 threads each."""
CACHE_SHARE = 0.5
"""Share of the second-level cache that holds what is read again; the rest holds results."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Fractions of a data sheet's peaks that kernels reach."""

    launch: float
    """Minimum seconds of any kernel."""
    window_reads: float
    """Window reads per cycle of a multiprocessor."""
    window_reads_backward: float
    """Window reads per cycle of a multiprocessor in a backward."""
    depthwise_weight: float
    """Window reads per cycle of a multiprocessor in the gradients of depthwise convolutions' weights."""
    cache: float
    """Bytes per cycle and multiprocessor from the second-level cache."""
    depth: float
    """Minimum depth of a tile whose depth is split."""
    weights: float
    """Fraction of the memory bandwidth for converting the layout of a convolution's weights."""
    pointwise_weights: float
    """Fraction of the memory bandwidth for converting the layout of weights of size-1 convolutions."""

    def seconds(self, columns: "Columns", gpu: GpuSheet, *, tf32: bool = True) -> Array:
        """Returns the seconds of each kernel.

        Args:
            columns: the kernels.
            gpu: data sheet of the GPU.
            tf32: products and convolutions of fp32 numbers are rounded to TF32 and use the tensor cores.
        """
        x, bandwidth = columns, gpu.bandwidth * gpu.reach.bandwidth
        moved = (x.bytes + self._read_again(x, gpu)) / bandwidth
        reads = np.where(x.backward, self.window_reads_backward, self.window_reads)
        reads = np.where(x.kind == "depthwise", np.where(x.of_weight, self.depthwise_weight, np.inf), reads)
        windows = x.window_reads / (reads * gpu.multiprocessors * gpu.clock)
        tiles, _ = self._tiles(x, gpu, peaks(x, gpu, tf32=tf32) * reaches(x, gpu, tf32=tf32))
        layout = 2 * x.layout_bytes / bandwidth
        weights = 2 * x.weight_bytes / (gpu.bandwidth * np.where(x.pointwise, self.pointwise_weights, self.weights))
        converted = np.where(uses_tensor_cores(x, gpu, tf32=tf32), layout + weights, 0.0)
        windowed = (x.kind == "window") | (x.kind == "depthwise")
        result: Array = np.select(
            [x.kind == "memory", windowed, x.kind == "product"],
            [moved, np.maximum(moved, windows), np.maximum(moved, tiles)],
            converted + moved + tiles,
        )
        return self.launch + result

    def _read_again(self, x: "Columns", gpu: GpuSheet) -> Array:
        """Returns the bytes that are read a second time from memory: what the cache does not hold any more."""
        in_flight = np.where(x.row_bytes > 0, x.row_bytes * gpu.multiprocessors * RESIDENT_ROWS, x.bytes)
        return np.where(np.minimum(in_flight, x.bytes) > gpu.cache * CACHE_SHARE, x.again_bytes, 0.0)

    def blocks(self, columns: "Columns", gpu: GpuSheet, *, tf32: bool = True) -> Array:
        """Returns the thread blocks of each kernel, of which a multiprocessor runs one at a time.

        Those of products and convolutions are their tiles, split in depth where they are too few. For other kernels
        a block is what fills a multiprocessor once: :data:`RESIDENT_BYTES`.
        """
        x = columns
        _, tiles = self._tiles(x, gpu, peaks(x, gpu, tf32=tf32) * reaches(x, gpu, tf32=tf32))
        tiled = (x.kind == "product") | (x.kind == "convolution")
        return np.maximum(1, np.where(tiled, tiles, np.ceil(x.bytes / RESIDENT_BYTES)))

    def _tiles(self, x: "Columns", gpu: GpuSheet, peak: Array) -> tuple[Array, Array]:
        """Returns the seconds of the tiles, in waves over the multiprocessors, and their number."""
        best, blocks = np.full(len(x.rows), np.inf), np.ones(len(x.rows))
        for height, width in TILES:
            tiles = np.ceil(x.rows / height) * np.ceil(x.columns / width) * x.count
            split = np.maximum(1, gpu.multiprocessors // np.maximum(tiles, 1))
            depth = np.maximum(x.depth / split, np.minimum(x.depth, self.depth))
            compute = 2 * height * width * gpu.multiprocessors / peak
            fetched = (np.minimum(height, x.rows) + np.minimum(width, x.columns)) * x.element_size
            step = np.maximum(compute, fetched / (self.cache * gpu.clock))
            seconds = np.ceil(tiles / gpu.multiprocessors) * depth * step
            blocks = np.where(seconds < best, tiles * np.ceil(x.depth / np.maximum(depth, 1)), blocks)
            best = np.minimum(best, seconds)
        return best, blocks


FITTED = Efficiency(
    launch=5.42e-6,
    window_reads=4.18,
    window_reads_backward=1.10,
    depthwise_weight=1.6,
    cache=27.2,
    depth=1384,
    weights=0.474,
    pointwise_weights=0.184,
)
"""Efficiencies fitted to the layer times that DeepPool's authors published: convolutions, poolings and linear layers of
VGG-16, WideResNet-101-2 and Inception-v3 on an A100 (40 GB), each layer in a CUDA graph of its own, fp32 with TF32
products (``python -m benchmarks.estimates.main``); depthwise convolutions to throughputs that timm published for an
RTX 3090 (``python -m benchmarks.estimates.validation``). Other GPUs are assumed to reach the same."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Error of estimated iteration times, against published throughputs that nothing was fitted to."""

    median: float
    """Median of abs(estimated / measured - 1)."""
    most: float
    """90th percentile."""
    gpus: tuple[str, ...]
    """Names of the GPUs."""
    samples: int
    """Number of throughputs."""

    def __str__(self) -> str:
        return (
            f"± {100 * self.median:.0f} % in the median and {100 * self.most:.0f} % at the 90th percentile, checked on "
            f"{self.samples} published throughputs ({', '.join(self.gpus)}) that nothing was fitted to"
        )


_HALF = Accuracy(0.06, 0.19, ("rtx3090", "a100-80", "v100"), 50)
ACCURACY: dict[Precision, Accuracy] = {
    "fp16": _HALF,
    "bf16": _HALF,
    "tf32": Accuracy(0.11, 0.36, ("a100-80",), 7),
    "fp32": Accuracy(0.11, 0.20, ("v100",), 7),
}
"""By precision; the throughputs in 16 bits are those of fp16. See benchmarks/estimates."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Properties of kernels as arrays, to compute all times at once."""

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
    again_bytes: Array
    row_bytes: Array
    of_weight: NDArray[np.bool_]
    """Whether it computes the gradient of a convolution's weights."""

    @classmethod
    def of(cls, kernels: Sequence[Kernel]) -> "Columns":
        """Collects the properties of kernels."""
        names = "bytes flops rows columns count element_size layout_bytes weight_bytes window_reads"
        names += " again_bytes row_bytes"
        of = {name: np.array([getattr(kernel, name) for kernel in kernels], dtype=np.float64) for name in names.split()}
        return cls(
            kind=np.array([kernel.kind for kernel in kernels], dtype=np.str_),
            of_weight=np.array([kernel.operator == "convolution_backward_weight" for kernel in kernels], np.bool_),
            backward=np.array(["backward" in kernel.operator for kernel in kernels], dtype=np.bool_),
            # Multiply-adds per element of the result; fractional for a strided convolution's backward.
            depth=of["flops"] / np.maximum(2 * of["rows"] * of["columns"] * of["count"], 1),
            pointwise=np.array([kernel.pointwise for kernel in kernels], dtype=np.bool_),
            **of,
        )


def uses_tensor_cores(columns: Columns, gpu: GpuSheet, *, tf32: bool = True) -> NDArray[np.bool_]:
    """Returns whether the products of each kernel use the tensor cores."""
    result: NDArray[np.bool_] = (columns.element_size <= 2) | (tf32 and gpu.tf32 is not None)
    return result


def peaks(columns: Columns, gpu: GpuSheet, *, tf32: bool = True) -> Array:
    """Returns the peak operations per second of each kernel by the data sheet."""
    result: Array = np.where(columns.element_size <= 2, gpu.half, gpu.tf32 if tf32 and gpu.tf32 else gpu.fp32)
    return result


def reaches(columns: Columns, gpu: GpuSheet, *, tf32: bool = True) -> Array:
    """Returns the fraction of these peaks that large products reach."""
    single = gpu.reach.tf32 if tf32 and gpu.tf32 else gpu.reach.fp32
    result: Array = np.where(columns.element_size <= 2, gpu.reach.half, single)
    return result

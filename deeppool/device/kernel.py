"""A kernel on a GPU, by the numbers that decide how long it takes."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["memory", "window", "depthwise", "product", "convolution"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Kernel of an operator on a GPU."""

    operator: str
    kind: Kind
    """``memory``: bounded by reads and writes; ``window``: reads each element in several windows, as pooling does;
    ``depthwise``: a convolution of each channel by itself; ``product``: matrix products; ``convolution``: a
    convolution computed as such products."""
    bytes: int
    """Bytes of inputs and outputs."""
    flops: int = 0
    """FLOPs of the products; a multiply-add counts as two."""
    rows: int = 0
    """Rows of one product's result."""
    columns: int = 0
    """Columns of one product's result."""
    count: int = 1
    """Number of independent products: batched ones, or the groups of a convolution."""
    element_size: int = 4
    """Bytes per element."""
    layout_bytes: int = 0
    """Bytes of activations that are converted from channels first to the channels-last layout of kernels."""
    weight_bytes: int = 0
    """Bytes of weights or their gradients that are converted in the same way."""
    pointwise: bool = False
    """Whether it is a convolution of size 1."""
    window_reads: int = 0
    """Elements read in windows; in the backward of pooling each element costs more reads
    (:data:`deeppool.device.kernels.FIND_WINDOWS`)."""
    again_bytes: int = 0
    """Bytes that are read a second time, from the second-level cache where they are still in it."""
    row_bytes: int = 0
    """Bytes that a thread block reads before it reads them again; 0: all are read before any is read again."""
    whole_table: bool = False
    """Whether an operator on rows of a table takes so many that it reads all of it; fewer samples take a part."""

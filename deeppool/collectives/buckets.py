"""Gradient buckets: which gradients one all-reduce sums.

Gradients of a bucket share the latency of one all-reduce; one by itself starts early and needs no copy (Li et al.,
"PyTorch Distributed", VLDB 2020, section 3.2). A plan says by which rule a run makes its buckets, and is priced by it.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from deeppool.errors import InvalidValueError
from deeppool.units import format_bytes

BUCKET_BYTES = 25 * 2**20
"""Size at which a bucket is complete; DDP's default (``bucket_cap_mb``)."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Rule that groups the gradients of layers on the same GPUs, in the order in which the backward computes them."""

    alone: int | None
    """Bytes from which a gradient is a bucket of its own; None: none is."""
    size: int = BUCKET_BYTES
    """Bytes of other gradients at which a bucket is complete."""
    first: int | None = None
    """The same of the first bucket; None: as of the others."""

    def __post_init__(self) -> None:
        for name, least in (("alone", 0), ("size", 1), ("first", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidValueError(f"{name} of buckets must be at least {least} bytes, got {value}")

    def __str__(self) -> str:
        if self == ONE_BUCKET:
            return "one bucket for all gradients of the same GPUs"
        sizes = "" if self.first is None else f"{format_bytes(self.first)}, then "
        text = f"buckets of {sizes}{format_bytes(self.size)}"
        if self.alone is None:
            return text
        large = "larger gradients" if self.alone == self.size else f"gradients of {format_bytes(self.alone)} or more"
        return f"{text}, {large} by themselves"

    @property
    def largest_joined(self) -> float:
        """Bytes below which a gradient shares a bucket; infinite if all do."""
        return math.inf if self.alone is None else self.alone

    def largest(self, sizes: Sequence[int]) -> int:
        """Returns bytes, at least one, that no bucket of several of these gradients exceeds."""
        joined = max(self.size, self.first or 0) + (max(sizes, default=0) if self.alone is None else self.alone)
        return min(max(1, sum(sizes)), joined)

    def group(self, sizes: Sequence[int], types: Sequence[Hashable] | None = None) -> list[list[int]]:
        """Groups gradients into buckets.

        Args:
            sizes: bytes of each gradient, in the order in which the backward pass computes them.
            types: type of each; gradients of two types share no bucket, and each type has a first one. None: all have
                the same.

        Returns:
            Positions of the gradients in each bucket, in the order in which the buckets are complete.
        """
        if types is not None:
            of_type: dict[Hashable, list[int]] = {}
            for position, dtype in enumerate(types):
                of_type.setdefault(dtype, []).append(position)
            alike = ((places, self.group([sizes[place] for place in places])) for places in of_type.values())
            grouped = ([places[position] for position in bucket] for places, buckets in alike for bucket in buckets)
            return sorted(grouped, key=lambda bucket: bucket[-1])
        found: list[list[int]] = []
        filling: list[int] = []
        filled, complete = 0, self.first or self.size
        for position, size in enumerate(sizes):
            if size >= self.largest_joined:
                found.append([position])
                continue
            filling.append(position)
            filled += size
            if filled >= complete:
                found.append(filling)
                filling, filled, complete = [], 0, self.size
        return sorted([*found, *[filling] * bool(filling)], key=lambda bucket: bucket[-1])


ONE_BUCKET = Buckets(alone=None, size=2**62)
"""All gradients of the same GPUs share one all-reduce."""
DDP_BUCKETS = Buckets(alone=None, first=2**20)
"""Buckets of PyTorch's DistributedDataParallel by default: the first is smaller, so that transfers begin early."""


def ddp_buckets(size: int) -> Buckets:
    """Returns DDP's buckets of a size: of its default the first is smaller, of a ``bucket_cap_mb`` as large as all."""
    return DDP_BUCKETS if size == BUCKET_BYTES else Buckets(alone=None, size=size)


SEARCHED_BUCKETS = (
    *(Buckets(alone=size, size=size) for size in (BUCKET_BYTES, 50 * 2**20, 100 * 2**20)),
    ONE_BUCKET,
    *(Buckets(alone=size, size=size) for size in (4 * 2**20, 2**20)),
)
"""Buckets among which a plan has the best ones, in order of preference: large for long latencies, small for slow links.
"""
DATA_PARALLEL_BUCKETS = (*SEARCHED_BUCKETS, DDP_BUCKETS, ddp_buckets(100 * 2**20))
"""Buckets among which data parallelism has the best ones: those of plans, and DDP's by default and of 100 MiB."""
DEFAULT_BUCKETS = Buckets(alone=4 * 2**20)
"""Buckets of plans of earlier versions, whose files say nothing of them."""

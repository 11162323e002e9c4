"""Gradient buckets: which gradients one all-reduce sums.

Small gradients share an all-reduce, so that they share its latency (Li et al., "PyTorch Distributed", VLDB 2020,
section 3.2). The runtime makes its buckets by this rule and the planner prices them by it.
"""

from collections.abc import Sequence

ALONE_BYTES = 4 * 2**20
"""A larger gradient is a bucket of its own, which saves copying it; for smaller ones latency costs more."""
BUCKET_BYTES = 25 * 2**20
"""A bucket of small gradients is complete when it has this size; DDP's default."""
FIRST_BUCKET = 2**20
"""DDP's first bucket is smaller, so that transfers begin early."""
LARGEST_BUCKET = BUCKET_BYTES + ALONE_BYTES
"""Bytes that no bucket of small gradients exceeds."""


def ddp_buckets(sizes: Sequence[int]) -> list[list[int]]:
    """Groups gradients as DistributedDataParallel does by default; arguments as for :func:`group_into_buckets`."""
    found: list[list[int]] = [[]]
    filled = 0
    for position, size in enumerate(sizes):
        found[-1].append(position)
        filled += size
        if filled >= (FIRST_BUCKET if len(found) == 1 else BUCKET_BYTES):
            found.append([])
            filled = 0
    return [bucket for bucket in found if bucket]


def group_into_buckets(sizes: Sequence[int]) -> list[list[int]]:
    """Groups gradients into buckets.

    Args:
        sizes: bytes of each gradient, in the order in which the backward pass computes them.

    Returns:
        Positions of the gradients in each bucket, in the order in which the buckets are complete.
    """
    found: list[list[int]] = []
    filling: list[int] = []
    filled = 0
    for position, size in enumerate(sizes):
        if size >= ALONE_BYTES:
            found.append([position])
            continue
        filling.append(position)
        filled += size
        if filled >= BUCKET_BYTES:
            found.append(filling)
            filling, filled = [], 0
    return sorted([*found, *[filling] * bool(filling)], key=lambda bucket: bucket[-1])

"""Seconds in which a core copies gradients into the bucket that an all-reduce sums."""

import statistics
import time

import torch

from deeppool.collectives.buckets import BUCKET_BYTES
from deeppool.device.kinds import find_kind
from deeppool.device.protocol import Device

GRADIENTS = 16
"""Gradients of a bucket."""
RUNS = 9


def copy_seconds_per_byte(device: Device) -> float:
    """Returns the median seconds per byte of filling one bucket of DDP's size, while other ranks may do the same.

    0 on GPUs, where it is not measured.
    """
    if not find_kind(device.kind).on_cores:
        return 0.0
    gradients = [torch.zeros(BUCKET_BYTES // 4 // GRADIENTS) for _ in range(GRADIENTS)]
    # A run keeps its memory, so only the first copy waits for pages.
    bucket = torch.cat(gradients)
    seconds = []
    for _ in range(RUNS):
        started = time.perf_counter()
        torch.cat(gradients, out=bucket)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) / bucket.nbytes

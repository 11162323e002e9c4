"""Seconds on the network.

Two models, by name:

``ring``
    Only samples that change GPU travel; the busiest port counts. An all-reduce is a ring: each GPU
    sends 2 (g - 1) / g of the bytes in 2 (g - 1) steps.
``paper``
    DeepPool, section 4.1: the per-GPU payload over the bandwidth, plus one propagation delay, with full
    bisection bandwidth; an all-reduce is priced as one transfer of the gradients.
"""

from dataclasses import dataclass
from typing import Literal

from deeppool.cluster import Cluster
from deeppool.collectives.layout import Layout
from deeppool.collectives.reshard import busiest_samples

NetworkModel = Literal["ring", "paper"]


@dataclass(frozen=True, slots=True)
class Network:
    """Prices transfers between the GPUs of a cluster."""

    cluster: Cluster
    model: NetworkModel = "ring"

    def reshard_time(self, source: Layout, destination: Layout, sample_bytes: int) -> float:
        """Seconds to move activations of ``sample_bytes`` per sample one way; the gradients take the same way back."""
        latency, per_byte = self.reshard_terms(source, destination)
        return latency + sample_bytes * per_byte

    def reshard_terms(self, source: Layout, destination: Layout) -> tuple[float, float]:
        """Seconds however few bytes, and seconds per byte of a sample."""
        if source == destination:
            return 0.0, 0.0
        link = self.cluster.link(1 + max(*source.gpus, *destination.gpus))
        if self.model == "paper":
            samples = max(len(source.shard(source.gpus[0])), len(destination.shard(destination.gpus[0])))
        else:
            samples = busiest_samples(source, destination)
        return link.latency, samples / link.bandwidth

    def all_reduce_time(self, gpu_count: int, size: int) -> float:
        """Seconds to sum ``size`` bytes of gradients over the first ``gpu_count`` GPUs."""
        if gpu_count == 1 or size == 0:
            return 0.0
        link = self.cluster.link(gpu_count)
        if self.model == "paper":
            return link.latency + size / link.bandwidth
        return 2 * (gpu_count - 1) * (link.latency + size / gpu_count / link.bandwidth)

"""GPUs, nodes and the links between them."""

import math
import os
from dataclasses import dataclass, field, replace
from typing import ClassVar

from deeppool.base import serialization
from deeppool.base.arguments import check_fields, typed
from deeppool.base.number_checks import real_number, whole_number
from deeppool.cluster.measured_network import MeasuredNetwork
from deeppool.errors import InvalidValueError
from deeppool.units import format_bytes, format_count, format_seconds


@dataclass(frozen=True, slots=True)
class Link:
    """Directed link between two GPUs, used in both directions at the same time."""

    bandwidth: float
    """Bytes per second, each direction."""
    latency: float
    """Seconds before the first byte arrives."""
    source: str
    """Source of the two numbers: a data sheet, or a description of the measurement."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("bandwidth", "latency"):
            object.__setattr__(self, name, real_number(name, getattr(self, name)))
        if not 0 < self.bandwidth < math.inf:
            raise InvalidValueError(f"bandwidth must be positive, got {self.bandwidth} bytes/s")
        if not 0 <= self.latency < math.inf:
            raise InvalidValueError(f"latency must not be negative, got {self.latency} s")

    def __str__(self) -> str:
        return f"{format_bytes(self.bandwidth)}/s, {format_seconds(self.latency)} ({self.source})"


NVSWITCH_A100 = Link(300e9, 5e-6, "DGX A100 data sheet: 600 GB/s both directions; latency estimated")
NVSWITCH_H100 = Link(450e9, 5e-6, "DGX H100/H200 data sheet: 900 GB/s both directions; latency estimated")
INFINIBAND_HDR = Link(25e9, 10e-6, "DGX A100 data sheet: one 200 Gbit/s port a GPU; latency estimated")
INFINIBAND_NDR = Link(50e9, 10e-6, "DGX H100 data sheet: one 400 Gbit/s port a GPU; latency estimated")
ETHERNET_25G = Link(25e9 / 8, 50e-6, "25 Gbit/s line rate; latency estimated")
LOOPBACK = Link(
    1.0e9,
    250e-6,
    "the slow end of gloo's all-reduce between two processes of a 2-core AMD EPYC machine, 2026-11-21: "
    "0.8 to 1.7 GB/s at 10 to 64 MB, 0.1 to 0.25 ms at 4 bytes; one-way transfers are faster, yours differ",
)

MAXIMUM_GPUS = 2**20
"""Maximum number of GPUs of a cluster, and of a node."""

# Decimal gigabytes, as on the data sheets. A driver shows a few per cent more, which the CUDA context takes.
A100_MEMORY = 40e9
"""Memory of each of 8 GPUs in a DGX A100 320 GB, in bytes, by its data sheet, as in DeepPool's evaluation (table 2); a
version with 80 GB exists."""
H100_MEMORY = 80e9
"""Memory of each of 8 GPUs in a DGX H100, in bytes, by its data sheet."""
H200_MEMORY = 141e9
"""Memory of each of 8 GPUs in a DGX H200, in bytes, by its data sheet."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cluster of equal GPUs in equal nodes: ``Cluster(gpus=8)`` is one DGX A100.

    GPUs are numbered 0 … ``gpus`` - 1, node by node. A "GPU" is a device that runs one rank: on a CPU
    cluster it is a core.
    """

    KIND: ClassVar[str] = "cluster"

    gpus: int
    name: str = "dgx-a100"
    gpus_per_node: int = 8
    inside: Link = field(default=NVSWITCH_A100)
    """Link between two GPUs of one node."""
    between: Link = field(default=INFINIBAND_HDR)
    """Link between two GPUs of different nodes; see :attr:`across`."""
    memory: float | None = A100_MEMORY
    """Memory of each GPU in bytes, or None if unknown; plans are then not checked for memory."""
    measured: MeasuredNetwork | None = field(default=None, repr=False)
    """Measurements of ``deeppool network`` on these GPUs; they determine all-reduce times, unless disabled."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("gpus", "gpus_per_node"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), most=MAXIMUM_GPUS))
        if self.memory is None:
            return
        object.__setattr__(self, "memory", real_number("memory", self.memory))
        if not 0 < self.memory < math.inf:
            raise InvalidValueError(f"memory must be positive, got {self.memory:g} bytes (None: unknown)")

    def __str__(self) -> str:
        return f"{self.name}, {format_count(self.gpus, 'GPU')} ({self.inside})"

    def link(self, gpu_count: int, first: int = 0) -> Link:
        """Returns the slowest link among ``gpu_count`` GPUs, from GPU ``first`` on."""
        one_node = first // self.gpus_per_node == (first + gpu_count - 1) // self.gpus_per_node
        return self.inside if one_node else self.across

    @property
    def across(self) -> Link:
        """Slowest link among GPUs of several nodes: what leaves a node of several GPUs passes the links inside, too.

        Where each kind of link is slower in one way, it has the lower bandwidth and the higher latency.
        """
        return self.between if self.gpus_per_node == 1 else _slower(self.inside, self.between)


def _slower(inside: Link, between: Link) -> Link:
    """Returns the slower one of two links, or one as slow as both."""
    bandwidth, latency = min(inside.bandwidth, between.bandwidth), max(inside.latency, between.latency)
    for link in (between, inside):
        if (link.bandwidth, link.latency) == (bandwidth, latency):
            return link
    return Link(bandwidth, latency, f"{inside.source}; {between.source}")


def as_cluster(cluster: Cluster | int) -> Cluster:
    """Returns the cluster itself, or of a number of GPUs the DGX A100 with so many.

    Raises:
        InvalidValueError: it is neither, or fewer than one GPU.
    """
    return cluster if isinstance(cluster, Cluster) else Cluster(cluster)


PRESETS = {
    "dgx-a100": Cluster(8),
    "dgx-h100": Cluster(8, "dgx-h100", 8, NVSWITCH_H100, INFINIBAND_NDR, H100_MEMORY),
    "dgx-h200": Cluster(8, "dgx-h200", 8, NVSWITCH_H100, INFINIBAND_NDR, H200_MEMORY),
    "ethernet-25g": Cluster(8, "ethernet-25g", 1, ETHERNET_25G, ETHERNET_25G, None),
    # The memory of one machine is shared by all ranks and everything else on it.
    "loopback": Cluster(2, "loopback", 2**20, LOOPBACK, LOOPBACK, None),
}


def is_preset(cluster: Cluster) -> bool:
    """Returns whether the preset of a cluster's name has its links; one of other links may have the name, too."""
    preset = PRESETS.get(cluster.name)
    return preset is not None and replace(preset, gpus=cluster.gpus) == cluster


@typed
def find_cluster(name_or_file: str | os.PathLike[str], gpus: int) -> Cluster:
    """Returns a preset by name, or a cluster from a file, with ``gpus`` GPUs of it in use.

    Raises:
        InvalidValueError: neither a preset nor a file.
        DocumentError: the file is not a cluster.
    """
    if name_or_file in PRESETS:
        return replace(PRESETS[name_or_file], gpus=gpus)
    if not os.path.exists(name_or_file):
        raise InvalidValueError(
            f"no cluster '{name_or_file}': neither a file nor one of {', '.join(PRESETS)} "
            "(measure your own: deeppool network -o mine.json; or write it: dp.save(dp.Cluster(gpus=8), 'mine.json'))"
        )
    return replace(serialization.read(name_or_file, Cluster), gpus=gpus)

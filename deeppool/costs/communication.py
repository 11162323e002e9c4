"""Seconds on the network.

Transfers between layouts that start on the same GPU: only samples that change GPU travel, and the
busiest port counts. Between layouts that start on different GPUs, as the branches of a model do that run
side by side, all samples count as travelling: they do if the two share no GPU, and nearly all do
otherwise. An all-reduce of ``size`` bytes over g GPUs is priced by a pattern, which is the model's name, and which a
run performs (:meth:`Network.all_reduce_schedule`). These closed forms cost no schedule, whose steps grow with g; on
equal links :mod:`deeppool.costs.schedules` gives the same:

``ring``
    Each GPU sends 2 (g - 1) / g of the bytes in 2 (g - 1) steps, at the slowest link. The default elsewhere: on
    CPUs, and on GPUs of one node.
``halving-doubling``
    The same bytes in 2 log2 g steps; g must be a power of two, other counts first fold into the next
    smaller one, which costs two more transfers (Thakur, Rabenseifner, Gropp, 2005).
``hierarchical``
    Reduce-scatter inside each node, a ring between the nodes per share, all-gather inside. For whole
    nodes only; other counts are priced as a ring.
``best``
    The fastest of the three.
``nccl``
    Inside a node as ``ring``, over several as fast as ``best``, by the library's own all-reduce: NCCL chooses among
    rings through all ports of a node and trees. The default for GPUs of several nodes.
``measured``
    Times that ``deeppool network`` measured on the cluster's own ranks, by group and size
    (:mod:`deeppool.cluster.measured_network` interpolates and extrapolates). The default where the cluster has
    measurements.
``paper``
    DeepPool, section 4.1, for transfers too: the per-GPU payload over the bandwidth, plus one propagation
    delay, with full bisection bandwidth; an all-reduce is one transfer of the gradients.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from deeppool.cluster.cluster import Cluster
from deeppool.cluster.measured_network import MeasuredNetwork
from deeppool.collectives.layout import Layout
from deeppool.collectives.patterns import ALL_REDUCES
from deeppool.collectives.reshard import busiest_samples, busiest_samples_of_first
from deeppool.collectives.schedule import Schedule
from deeppool.device.kinds import find_kind
from deeppool.errors import InvalidValueError

Locality = Literal[0, 1, 2]
SAME_START: Locality = 0
"""Locality of a set of GPUs that starts where the other one does."""
SAME_NODE: Locality = 1
"""Locality of one that starts elsewhere in the same node, and ends in it."""
CROSS_NODE: Locality = 2
"""Locality of one that starts or ends in another node."""
NetworkModel = Literal["ring", "halving-doubling", "hierarchical", "best", "nccl", "measured", "paper"]


def ring(cluster: Cluster, gpu_count: int, size: int) -> float:
    """Returns the seconds of a ring all-reduce over the first GPUs."""
    link = cluster.link(gpu_count)
    return 2 * (gpu_count - 1) * (link.latency + size / gpu_count / link.bandwidth)


def halving_doubling(cluster: Cluster, gpu_count: int, size: int) -> float:
    """Returns the seconds of recursive halving and doubling."""
    link = cluster.link(gpu_count)
    steps = int(math.log2(gpu_count))
    power: int = 2**steps
    time = 2 * steps * link.latency + 2 * (power - 1) / power * size / link.bandwidth
    fold = 0.0 if power == gpu_count else 2 * (link.latency + size / link.bandwidth)
    return time + fold


def hierarchical(cluster: Cluster, gpu_count: int, size: int) -> float:
    """Returns the seconds of reduce-scatter inside nodes, rings between them, all-gather inside."""
    inside = cluster.gpus_per_node
    nodes, rest = divmod(gpu_count, inside)
    if nodes < 2 or rest:
        return ring(cluster, gpu_count, size)
    near, far = cluster.inside, cluster.between
    share = size / inside
    return 2 * (inside - 1) * (near.latency + share / near.bandwidth) + 2 * (nodes - 1) * (
        far.latency + share / nodes / far.bandwidth
    )


PATTERNS: dict[str, Callable[[Cluster, int, int], float]] = {
    "ring": ring,
    "halving-doubling": halving_doubling,
    "hierarchical": hierarchical,
}

FAVOURED: dict[str, Callable[[Cluster, int], bool]] = {
    "halving-doubling": lambda cluster, gpu_count: gpu_count & (gpu_count - 1) == 0,
    "hierarchical": lambda cluster, gpu_count: gpu_count % cluster.gpus_per_node == 0,
}
"""Patterns that are faster over some GPU counts, powers of two or whole nodes, than over some smaller ones."""


def default_model(cluster: Cluster, device: str) -> NetworkModel:
    """Returns what prices the all-reduces that devices of a kind perform on a cluster, ``cpu`` or another one."""
    if cluster.measured is not None:
        return "measured"
    several = 1 < cluster.gpus_per_node < cluster.gpus
    return "nccl" if several and find_kind(device).backend == "nccl" else "ring"


@dataclass(frozen=True, slots=True)
class Network:
    """Prices transfers between the GPUs of a cluster."""

    cluster: Cluster
    model: NetworkModel = "ring"

    def __post_init__(self) -> None:
        if self.model not in get_args(NetworkModel):
            raise InvalidValueError(
                f"network_model must be one of {', '.join(get_args(NetworkModel))}, got '{self.model}'"
            )
        if self.model == "measured" and self.cluster.measured is None:
            raise InvalidValueError(
                f"network model 'measured' needs a measured cluster, '{self.cluster.name}' was not measured "
                "(deeppool network -o mine.json makes one; or take the model 'ring')"
            )

    @property
    def _measured(self) -> MeasuredNetwork | None:
        """Measurements, if they price all-reduces."""
        return self.cluster.measured if self.model == "measured" else None

    @property
    def sync_computing(self) -> float:
        """Share of an all-reduce that its cores compute; see :attr:`MeasuredNetwork.sync_computing`."""
        return self._measured.sync_computing if self._measured else 0.0

    @property
    def copy_seconds_per_byte(self) -> float:
        """Seconds to copy a byte of gradients into a bucket; 0 where that was not measured."""
        return self._measured.copy_seconds_per_byte if self._measured else 0.0

    def reshard_time(self, source: Layout, destination: Layout, sample_bytes: int) -> float:
        """Returns the seconds to move activations of ``sample_bytes`` per sample one way, as for the gradients back."""
        latency, per_byte = self.reshard_terms(source, destination)
        return latency + sample_bytes * per_byte

    def reshard_terms(self, source: Layout, destination: Layout) -> tuple[float, float]:
        """Returns the seconds independent of the number of bytes, and the seconds per byte of a sample."""
        if source == destination:
            return 0.0, 0.0
        first, last = min(source.gpus[0], destination.gpus[0]), max(source.gpus[-1], destination.gpus[-1])
        link = self.cluster.link(last - first + 1, first)
        if self.model == "paper" or source.gpus[0] != destination.gpus[0]:
            return link.latency, max(source.largest_shard, destination.largest_shard) / link.bandwidth
        return link.latency, busiest_samples(source, destination) / link.bandwidth

    def terms_between(self, source: int, destination: int, batch: int, place: Locality) -> tuple[float, float]:
        """Returns what :meth:`reshard_terms` does, from some adjacent GPUs to others.

        Args:
            source: GPUs that the samples leave.
            destination: GPUs that they reach.
            batch: samples, over all GPUs.
            place: locality of one of the two relative to the other.
        """
        if place == SAME_START and source == destination:
            return 0.0, 0.0
        link = self.cluster.across if place == CROSS_NODE else self.cluster.link(max(source, destination))
        if place == SAME_START and self.model != "paper":
            return link.latency, busiest_samples_of_first(source, destination, batch) / link.bandwidth
        return link.latency, -(-batch // min(source, destination)) / link.bandwidth

    def favoured_by(self, gpu_count: int) -> tuple[str, ...]:
        """Returns the model's patterns whose all-reduce may be faster over ``gpu_count`` GPUs than over fewer."""
        if self._measured:
            return (f"measured on {gpu_count}",) if self._measured.favours(gpu_count) else ()
        return tuple(
            pattern
            for pattern, favoured in FAVOURED.items()
            if self.model in (pattern, "best", "nccl") and favoured(self.cluster, gpu_count)
        )

    def all_reduce_time(self, gpu_count: int, size: int) -> float:
        """Returns the seconds to sum ``size`` bytes of gradients over the first ``gpu_count`` GPUs."""
        if gpu_count == 1 or size == 0:
            return 0.0
        if self.model == "paper":
            link = self.cluster.link(gpu_count)
            return link.latency + size / link.bandwidth
        if self._measured:
            return self._measured.all_reduce_time(gpu_count, size)
        if self.model == "best" or (self.model == "nccl" and gpu_count > self.cluster.gpus_per_node):
            return min(pattern(self.cluster, gpu_count, size) for pattern in PATTERNS.values())
        return PATTERNS.get(self.model, ring)(self.cluster, gpu_count, size)

    def all_reduce_time_over(self, gpus: Sequence[int], size: int) -> float:
        """Returns the seconds to sum ``size`` bytes of gradients over some GPUs, in ascending order."""
        node = self.cluster.gpus_per_node
        if len(gpus) > node or gpus[0] // node == gpus[-1] // node or self.model == "measured":
            return self.all_reduce_time(len(gpus), size)
        # The first ones would be in one node: these are priced as if each were in its own, at the slowest link.
        slowest = self.cluster.link(gpus[-1] - gpus[0] + 1, gpus[0])
        apart = replace(self, cluster=replace(self.cluster, gpus_per_node=1, between=slowest))
        return apart.all_reduce_time(len(gpus), size)

    @property
    def performs_schedules(self) -> bool:
        """Whether a run performs some all-reduces by schedules."""
        return self.model in ("halving-doubling", "hierarchical", "best")

    def all_reduce_schedule(self, gpu_count: int, size: int) -> Schedule | None:
        """Returns the schedule that a run performs for an all-reduce so priced; None: the library's own all-reduce.

        That one is a ring over gloo, and NCCL chooses its own algorithm: it performs ``ring``, ``nccl``, ``measured``
        and ``paper``.
        """
        pattern: str = self.model
        if self.model == "best":
            pattern = min(PATTERNS, key=lambda name: PATTERNS[name](self.cluster, gpu_count, size))
        if not self.performs_schedules or pattern == "ring":
            return None
        return ALL_REDUCES[pattern](gpu_count, self.cluster.gpus_per_node)

    def least_seconds_per_byte(self, gpu_count: int, largest: int) -> float:
        """Returns seconds per byte that no all-reduce of up to ``largest`` bytes falls below, its latency included."""
        if gpu_count > 1 and self._measured:
            return self._measured.least_seconds_per_byte(gpu_count, largest)
        # Latency and time per byte of a pattern do not depend on the size, so more bytes share the latency better.
        return self.all_reduce_time(gpu_count, largest) / largest

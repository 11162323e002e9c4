"""Every price that a plan search needs, as arrays over layers and GPU counts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from deeppool.collectives.buckets import DEFAULT_BUCKETS, Buckets
from deeppool.costs.communication import CROSS_NODE, SAME_NODE, SAME_START, Locality, Network
from deeppool.graph.layer import LayerGraph
from deeppool.profiling.table import Profile

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CostTable:
    """Prices of a profile's layers at a global batch on a cluster.

    ``L`` layers, ``K`` GPU counts; GPU count ``k`` means ``gpu_counts[k]`` neighbouring GPUs. They start on
    GPU 0, or at the start of a branch's own GPUs.
    """

    graph: LayerGraph
    network: Network
    global_batch: int
    gpu_counts: tuple[int, ...]
    """GPU counts, ascending; the first one is 1."""
    forward: Floats
    """(L, K) seconds of the forward at per-GPU batch ceil(global_batch / g)."""
    own_backward: Floats
    """(L, K) seconds of the backward, without copies of gradients."""
    sync: Floats
    """(L, K) seconds of the all-reduce of the layer's gradients; tied ones count for the first layer."""
    extrapolated: NDArray[np.bool_]
    """(L, K) whether the time is extrapolated above the profile's largest batch."""
    reshard_latency: Floats
    """(3, K, K) place, from, to: seconds one way, however few bytes."""
    reshard_per_byte: Floats
    """(3, K, K) place, from, to: seconds one way per byte of a sample."""
    overlap: bool
    """Whether all-reduces overlap the backward pass, in buckets; else everything waits for each."""
    update_per_byte: float = 0.0
    """Seconds of the optimizer's update per byte of parameters, on each GPU that holds them."""
    buckets: Buckets = DEFAULT_BUCKETS
    """Which gradients share an all-reduce where these overlap."""

    @cached_property
    def backward(self) -> Floats:
        """(L, K) seconds of the backward and of copying its gradients into buckets, which the same GPUs do."""
        several = np.array(self.gpu_counts) > 1
        copied = copies(self.network, self.graph.gradient_bytes, self.buckets) if self.overlap else 0.0
        total: Floats = self.own_backward + np.multiply.outer(copied, several)
        return total

    @cached_property
    def compute(self) -> Floats:
        """(L, K) forward + backward: comp(i, g)."""
        total: Floats = self.forward + self.backward
        return total

    @cached_property
    def update(self) -> Floats:
        """(L,) seconds of the update of a layer's parameters; 0 without overlap, as in the paper's model.

        Tied parameters count for the first layer that uses them.
        """
        seconds: Floats = np.array(self.graph.gradient_bytes) * (self.update_per_byte if self.overlap else 0.0)
        return seconds

    @cached_property
    def least_sync_per_byte(self) -> Floats:
        """(K,) seconds per byte that no all-reduce of a bucket of small gradients falls below."""
        largest = self.buckets.largest(self.graph.gradient_bytes)
        return np.array([self.network.least_seconds_per_byte(count, largest) for count in self.gpu_counts])

    @cached_property
    def least_sync(self) -> Floats:
        """(L, K) seconds that each layer's gradients add at least to the all-reduces of its GPUs, in buckets."""
        sizes = np.array(self.graph.gradient_bytes)[:, None]
        least: Floats = np.where(sizes >= self.buckets.largest_joined, self.sync, sizes * self.least_sync_per_byte)
        for (first, *_), tied in self.graph.tied.items():
            if tied < (size := self.graph.gradient_bytes[first]):
                # A tied parameter may be summed apart from the layer's others.
                largest = max(size, self.buckets.largest(self.graph.gradient_bytes))
                least[first] = [size * self.network.least_seconds_per_byte(count, largest) for count in self.gpu_counts]
        return least

    @cached_property
    def least_parts(self) -> Floats:
        """(4, L, K) seconds of each layer: forward, backward, what it adds at least to the all-reduces, update."""
        sums = self.least_sync if self.overlap else np.zeros(self.sync.shape)
        return np.stack([self.forward, self.backward, sums, np.broadcast_to(self.update[:, None], sums.shape)])

    @cached_property
    def all_reduce_time(self) -> Callable[[Sequence[int], int], float]:
        """Seconds to sum some bytes of gradients over some GPUs, in ascending order; each is computed once."""
        return cache(self.network.all_reduce_time_over)

    def comm(self, sample_bytes: int, place: Locality = SAME_START) -> Floats:
        """Returns (K, K) from, to: seconds there in forward and back in backward, comm((i, g) -> (j, h))."""
        both: Floats = 2 * (self.reshard_latency[place] + sample_bytes * self.reshard_per_byte[place])
        return both

    @cached_property
    def comm_rows(self) -> Callable[[int, Locality], list[list[float]]]:
        """The same as lists, computed once for each size and place: of these a single value is read in less time."""
        return cache(lambda sample_bytes, place: self.comm(sample_bytes, place).tolist())

    def at(self, options: Sequence[int]) -> "CostTable":
        """Returns the costs of some of the GPU counts, the first one among them."""
        chosen = list(options)
        return replace(
            self,
            gpu_counts=tuple(self.gpu_counts[option] for option in chosen),
            forward=self.forward[:, chosen],
            own_backward=self.own_backward[:, chosen],
            sync=self.sync[:, chosen],
            extrapolated=self.extrapolated[:, chosen],
            reshard_latency=self.reshard_latency[:, chosen][..., chosen],
            reshard_per_byte=self.reshard_per_byte[:, chosen][..., chosen],
        )

    @property
    def single_gpu_time(self) -> float:
        """Seconds of an iteration on one GPU, the update of all parameters included."""
        return float(self.compute[:, 0].sum() + self.update.sum())


def copies(network: Network, gradient_bytes: Sequence[int], buckets: Buckets) -> Floats:
    """Returns (L,) seconds to copy each layer's gradients into the buckets that they share with others."""
    sizes = np.array(gradient_bytes)
    seconds: Floats = np.where(sizes < buckets.largest_joined, sizes, 0) * network.copy_seconds_per_byte
    return seconds


def price(profile: Profile, network: Network, global_batch: int, gpu_counts: tuple[int, ...]) -> CostTable:
    """Queries the profile once per distinct layer, and the network once per distinct size, for every cost.

    Raises:
        MissingProfileError: the profile has no time for a per-GPU batch.
    """
    layers = profile.graph.layers
    forward, backward, extrapolated = _layer_times(profile, range(len(layers)), global_batch, gpu_counts)
    sizes, which = np.unique(profile.graph.gradient_bytes, return_inverse=True)
    sync = np.array([[network.all_reduce_time(g, int(size)) for g in gpu_counts] for size in sizes])
    reshard = _reshard_terms(network, global_batch, gpu_counts)
    return CostTable(
        graph=profile.graph,
        network=network,
        global_batch=global_batch,
        gpu_counts=gpu_counts,
        forward=forward,
        own_backward=backward,
        sync=sync[which],
        extrapolated=extrapolated,
        reshard_latency=reshard[..., 0],
        reshard_per_byte=reshard[..., 1],
        overlap=network.model != "paper",
        update_per_byte=profile.update_seconds_per_byte,
    )


def reprice(costs: CostTable, profile: Profile, layers: Sequence[int]) -> CostTable:
    """Updates a cost table after the times of some layers changed; transfers and all-reduces keep their costs.

    Args:
        costs: prices of another profile of the same graph.
        profile: the new times.
        layers: every layer whose times differ between the two.

    Raises:
        MissingProfileError: the profile has no time for a per-GPU batch.
    """
    if not layers:
        return costs
    rows = list(layers)
    forward, backward, extrapolated = costs.forward.copy(), costs.own_backward.copy(), costs.extrapolated.copy()
    forward[rows], backward[rows], extrapolated[rows] = _layer_times(
        profile, layers, costs.global_batch, costs.gpu_counts
    )
    return replace(costs, forward=forward, own_backward=backward, extrapolated=extrapolated)


def _layer_times(
    profile: Profile, layers: Iterable[int], global_batch: int, gpu_counts: tuple[int, ...]
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Returns forward, backward and extrapolated, each (layers, K); computed once for layers of equal signature."""
    rows: dict[str, int] = {}
    asked = []
    which = []
    for layer in layers:
        signature = profile.graph.layers[layer].signature
        if signature not in rows:
            rows[signature] = len(rows)
            asked.append([profile.time(layer, -(-global_batch // g)) for g in gpu_counts])
        which.append(rows[signature])
    return (
        np.array([[time.forward for time in row] for row in asked])[which],
        np.array([[time.backward for time in row] for row in asked])[which],
        np.array([[time.extrapolated for time in row] for row in asked])[which],
    )


@lru_cache(maxsize=16)
def _reshard_terms(network: Network, global_batch: int, gpu_counts: tuple[int, ...]) -> Floats:
    """Returns (3, K, K, 2) place, from, to: latency and seconds per byte, which do not depend on layers."""
    terms = np.array(
        [
            [[network.terms_between(a, b, global_batch, place) for b in gpu_counts] for a in gpu_counts]
            for place in (SAME_START, SAME_NODE, CROSS_NODE)
        ]
    )
    terms.flags.writeable = False
    return terms

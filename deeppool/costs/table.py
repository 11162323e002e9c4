"""Every price that a plan search needs, as arrays over layers and GPU counts."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from deeppool.collectives.layout import Layout
from deeppool.costs.communication import FAR, HOME, NEAR, Network, Place
from deeppool.graph.layer import LayerGraph
from deeppool.profiling.table import LayerTime, Profile

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CostTable:
    """Prices of a profile's layers at a global batch on a cluster.

    ``L`` layers, ``K`` GPU counts; GPU count ``k`` means ``gpu_counts[k]`` neighbouring GPUs. They start on
    GPU 0, or at the start of the GPUs that a branch has to itself.
    """

    graph: LayerGraph
    network: Network
    global_batch: int
    gpu_counts: tuple[int, ...]
    """Ascending, the first one is 1."""
    forward: Floats
    """(L, K) seconds at per-GPU batch ceil(global_batch / g)."""
    backward: Floats
    """(L, K)."""
    sync: Floats
    """(L, K) all-reduce of the layer's gradients."""
    extrapolated: NDArray[np.bool_]
    """(L, K) the profile was continued above its largest batch."""
    reshard_latency: Floats
    """(3, K, K) place, from, to: seconds one way, however few bytes."""
    reshard_per_byte: Floats
    """(3, K, K) place, from, to: seconds one way per byte of a sample."""

    @cached_property
    def compute(self) -> Floats:
        """(L, K) forward + backward: comp(i, g)."""
        total: Floats = self.forward + self.backward
        return total

    def comm(self, sample_bytes: int, place: Place = HOME) -> Floats:
        """(K, K) from, to: seconds there in forward and back in backward: comm((i, g) -> (j, h))."""
        both: Floats = 2 * (self.reshard_latency[place] + sample_bytes * self.reshard_per_byte[place])
        return both

    @property
    def single_gpu_time(self) -> float:
        """Seconds of an iteration on one GPU."""
        return float(self.compute[:, 0].sum())


def price(profile: Profile, network: Network, global_batch: int, gpu_counts: tuple[int, ...]) -> CostTable:
    """Asks the profile and the network for every price.

    Raises:
        MissingProfileError: the profile cannot answer for a per-GPU batch.
    """
    layers = range(len(profile.graph.layers))
    times: list[list[LayerTime]] = [[profile.time(i, -(-global_batch // g)) for g in gpu_counts] for i in layers]
    layouts = [Layout(tuple(range(g)), global_batch) for g in gpu_counts]
    home = [[network.reshard_terms(a, b) for b in layouts] for a in layouts]
    away = [[[network.away_terms(a, b, global_batch, x) for b in gpu_counts] for a in gpu_counts] for x in (NEAR, FAR)]
    reshard = np.array([home, *away])
    return CostTable(
        graph=profile.graph,
        network=network,
        global_batch=global_batch,
        gpu_counts=gpu_counts,
        forward=np.array([[time.forward for time in row] for row in times]),
        backward=np.array([[time.backward for time in row] for row in times]),
        sync=np.array(
            [[network.all_reduce_time(g, layer.parameter_bytes) for g in gpu_counts] for layer in profile.graph.layers]
        ),
        extrapolated=np.array([[time.extrapolated for time in row] for row in times]),
        reshard_latency=reshard[..., 0],
        reshard_per_byte=reshard[..., 1],
    )

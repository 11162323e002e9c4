"""Sets of GPUs of the layers of a plan: which ones share a GPU, and which branches run side by side."""

from collections.abc import Sequence
from functools import lru_cache

from deeppool.graph.series_parallel import ParallelBlock, layers_of

GpuSet = tuple[int, ...] | range
"""GPUs in ascending order."""
Gpus = Sequence[GpuSet]
"""GPUs that compute each layer of a graph."""


def concurrent_branches(block: ParallelBlock, gpus: Gpus) -> tuple[tuple[int, ...], ...]:
    """Returns groups of branches that a plan runs side by side; branches of one group share a GPU and run in order.

    Args:
        block: its branches are numbered.
        gpus: per layer its GPUs.
    """
    return _concurrent(tuple(frozenset(gpus[layer] for layer in layers_of(branch)) for branch in block.branches))


@lru_cache(maxsize=4096)
def _concurrent(branches: tuple[frozenset[GpuSet], ...]) -> tuple[tuple[int, ...], ...]:
    """Returns the same, from the GPU sets of each branch; a search times many plans of which a block stays the same."""
    lanes: list[tuple[frozenset[GpuSet], list[int]]] = []
    for position, own in enumerate(branches):
        used, together = own, [position]
        apart = []
        for others, members in lanes:
            if any(share_gpus(a, b) for a in used for b in others):
                used |= others
                together = [*members, *together]
            else:
                apart.append((others, members))
        lanes = [*apart, (used, sorted(together))]
    return tuple(sorted(tuple(members) for _, members in lanes))


def share_gpus(first: GpuSet, second: GpuSet) -> bool:
    """Returns whether two sets of GPUs have one in common."""
    if first[-1] < second[0] or second[-1] < first[0]:
        return False
    contiguous = len(first) == first[-1] - first[0] + 1 and len(second) == second[-1] - second[0] + 1
    return contiguous or not set(first).isdisjoint(second)

"""Partitions of the GPUs among the branches of a block: which run side by side, which one after another.

A *GPU group* is a range of consecutive GPUs that some branches have to themselves while the block runs, one
branch after another. One group over all GPUs is the block in sequence. Groups are laid out widest first, from the
GPUs' start; a group that fits into a node lies in one, a wider one starts at a node's start, so that whatever
runs inside it costs what it would cost on the first GPUs. The width of a group is one of the GPU counts that the
search may use, a power of two where there are three groups or more.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from deeppool.costs.communication import CROSS_NODE, SAME_NODE, SAME_START, Locality
from deeppool.graph.series_parallel import ParallelBlock, layers_of

MAX_BRANCHES = 5
"""Most branches of which every partition is tried; five have 52 groupings."""


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """A range of GPUs with the branches that run on it."""

    branches: tuple[int, ...]
    """Positions in the block, in the order in which they run."""
    width: int
    """Number of GPUs."""
    start: int
    """First GPU, from the start of the block's GPUs."""
    place: Locality
    """Locality of its GPUs, relative to those of the block's fork and join."""


Partition = tuple[GpuGroup, ...]
GroupShape = tuple[int, Locality]
"""Width and locality of a group: all that its cost depends on."""


@dataclass(frozen=True, slots=True, eq=False)
class PartitionSet:
    """All partitions of some GPUs among branches that no other partition dominates, ready for NumPy."""

    arrangements: tuple[Partition, ...]
    """Partitions, the one in sequence first."""
    slots: tuple[GroupShape, ...]
    lanes: tuple[tuple[tuple[int, ...], int], ...]
    """Distinct groups: their branches, and which of ``slots`` they are."""
    members: NDArray[np.intp]
    """(group, most branches) which branch in which slot: branch x slots + slot; padded with the number behind."""
    used: NDArray[np.intp]
    """(partition, most groups) which of ``lanes``; padded with the number behind the last one."""


@lru_cache(maxsize=1024)
def partition_set(branches: int, gpu_counts: tuple[int, ...], width: int, gpus_per_node: int) -> PartitionSet:
    """Returns the partitions of ``width`` GPUs.

    Args:
        branches: their number. Of more than ``MAX_BRANCHES`` only even partitions are tried.
        gpu_counts: widths that a group may have, ascending.
        width: GPUs to partition.
        gpus_per_node: GPUs of a node of the cluster.
    """
    found = tuple(_all_partitions(branches, gpu_counts, width, gpus_per_node))
    slots = tuple(dict.fromkeys((lane.width, lane.place) for arrangement in found for lane in arrangement))
    numbers = {slot: number for number, slot in enumerate(slots)}

    def kind(lane: GpuGroup) -> tuple[tuple[int, ...], int]:
        return lane.branches, numbers[lane.width, lane.place]

    lanes = tuple(dict.fromkeys(kind(lane) for arrangement in found for lane in arrangement))
    position = {lane: number for number, lane in enumerate(lanes)}
    members = np.full((len(lanes), branches), branches * len(slots))
    for number, (group, slot) in enumerate(lanes):
        members[number, : len(group)] = [branch * len(slots) + slot for branch in group]
    used = np.full((len(found), max(map(len, found))), len(lanes))
    for row, arrangement in enumerate(found):
        used[row, : len(arrangement)] = [position[kind(lane)] for lane in arrangement]
    return PartitionSet(found, slots, lanes, members, used)


def _all_partitions(branches: int, gpu_counts: tuple[int, ...], width: int, gpus_per_node: int) -> Iterator[Partition]:
    yield (GpuGroup(tuple(range(branches)), width, 0, SAME_START),)
    for groups in _groupings(branches):
        for shape in _shapes(len(groups), gpu_counts, width, gpus_per_node):
            seen = set()
            for order in _orders(groups):
                lanes = tuple(GpuGroup(group, *span) for group, span in zip(order, shape, strict=True))
                # Two groups of one width and locality may swap their branches; that is the same partition.
                key = frozenset((lane.branches, lane.width, lane.place) for lane in lanes)
                if key not in seen:
                    seen.add(key)
                    yield lanes


def is_complete(branches: int) -> bool:
    """Returns whether :func:`partition_set` tries every partition of GPUs among a number of branches."""
    return branches <= MAX_BRANCHES


GpuSet = tuple[int, ...] | range
"""GPUs in ascending order."""
Gpus = Sequence[GpuSet]
"""GPUs that compute each layer of a graph."""


def concurrent_branches(block: ParallelBlock, gpus: Gpus) -> list[list[int]]:
    """Returns groups of branches that a plan runs side by side; branches of one group share a GPU and run in order.

    Args:
        block: its branches are numbered.
        gpus: per layer its GPUs.
    """
    lanes: list[tuple[set[GpuSet], list[int]]] = []
    for position, branch in enumerate(block.branches):
        used = {gpus[layer] for layer in layers_of(branch)}
        together = [position]
        apart = []
        for others, members in lanes:
            if any(share_gpus(a, b) for a in used for b in others):
                used |= others
                together = [*members, *together]
            else:
                apart.append((others, members))
        lanes = [*apart, (used, sorted(together))]
    return sorted(members for _, members in lanes)


def share_gpus(first: GpuSet, second: GpuSet) -> bool:
    """Returns whether two sets of GPUs have one in common."""
    if first[-1] < second[0] or second[-1] < first[0]:
        return False
    contiguous = all(len(gpus) == gpus[-1] - gpus[0] + 1 for gpus in (first, second))
    return contiguous or not set(first).isdisjoint(second)


def _groupings(branches: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yields the partitions of the branches into two or more groups."""
    if is_complete(branches):
        yield from (groups for groups in _set_partitions(tuple(range(branches))) if len(groups) > 1)
        return
    for count in (2, 4, 8):
        if count <= branches:
            yield tuple(tuple(range(branches))[first::count] for first in range(count))


def _set_partitions(items: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for groups in _set_partitions(rest):
        yield ((first,), *groups)
        for position, group in enumerate(groups):
            yield (*groups[:position], (first, *group), *groups[position + 1 :])


def _orders(groups: tuple[tuple[int, ...], ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    if is_complete(sum(map(len, groups))):
        yield from itertools.permutations(groups)
    else:
        yield groups


Span = tuple[int, int, Locality]
"""Width, start and locality of a group."""


@lru_cache(maxsize=1024)
def _shapes(lanes: int, gpu_counts: tuple[int, ...], width: int, gpus_per_node: int) -> tuple[tuple[Span, ...], ...]:
    """Returns the widths of ``lanes`` groups of which none could be wider at its position."""
    widths = [count for count in gpu_counts if count < width and (lanes == 2 or count & (count - 1) == 0)]
    wider = dict(itertools.pairwise(widths))
    found = []
    for chosen in _descending(widths, lanes, width):
        slots = _laid_out(chosen, width, gpus_per_node)
        if slots is None:
            continue
        if not any(_covers(_laid_out(other, width, gpus_per_node), slots) for other in _widened(chosen, wider)):
            found.append(slots)
    return tuple(found)


def _descending(widths: Sequence[int], lanes: int, room: int) -> Iterator[tuple[int, ...]]:
    """Yields widths that do not grow, of no more than ``room`` GPUs together."""
    if not lanes:
        yield ()
        return
    for position, width in enumerate(widths):
        # The others need a GPU each at least.
        if width + lanes - 1 <= room:
            for others in _descending(widths[: position + 1], lanes - 1, room - width):
                yield (width, *others)


def _widened(chosen: tuple[int, ...], wider: dict[int, int]) -> Iterator[tuple[int, ...]]:
    """Yields the widths with one of them a step wider, or several equal ones."""
    for position, width in enumerate(chosen):
        if width in wider and (position == 0 or chosen[position - 1] >= wider[width]):
            yield (*chosen[:position], wider[width], *chosen[position + 1 :])
    if len(set(chosen)) < len(chosen):
        yield tuple(wider.get(width, width) for width in chosen)


def _covers(slots: tuple[Span, ...] | None, others: tuple[Span, ...]) -> bool:
    """Whether each group is as wide as the other one, and no farther away."""
    if slots is None or slots == others:
        return False
    return all(a[0] >= b[0] and a[2] <= b[2] for a, b in zip(slots, others, strict=True))


def _laid_out(widths: tuple[int, ...], room: int, gpus_per_node: int) -> tuple[Span, ...] | None:
    """Lays groups out by first fit, widest first; returns None where a node's end leaves no place."""
    free = [(0, room)]
    slots: list[Span] = []
    for width in widths:
        for position, (start, end) in enumerate(free):
            begin = _next_start(start, width, gpus_per_node)
            if begin + width <= end:
                free[position : position + 1] = [
                    gap for gap in ((start, begin), (begin + width, end)) if gap[0] < gap[1]
                ]
                slots.append((width, begin, _place(begin, width, gpus_per_node)))
                break
        else:
            return None
    return tuple(slots)


def _next_start(start: int, width: int, gpus_per_node: int) -> int:
    left_in_node = -start % gpus_per_node
    if start == 0 or width <= left_in_node or (width <= gpus_per_node and left_in_node == 0):
        return start
    return start + left_in_node


def _place(start: int, width: int, gpus_per_node: int) -> Locality:
    if start == 0:
        return SAME_START
    return SAME_NODE if start + width <= gpus_per_node else CROSS_NODE

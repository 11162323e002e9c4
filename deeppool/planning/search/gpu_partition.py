"""Partitions of the GPUs among the branches of a block: which run side by side, which one after another.

A *GPU group* is a range of consecutive GPUs that some branches have to themselves while the block runs, one
branch after another. One group over all GPUs is the block in sequence. A group that fits into a node lies in one, a
wider one starts at a node's start, so that whatever runs inside it costs what it would cost on the first GPUs. The
width of a group is one of the GPU counts that the search may use; or, where a branch forks again, any number of GPUs,
as groups inside may fill it together.

Only widths and localities have a cost, so of all orders and first GPUs those are tried of which no group could be
wider or nearer. More than five branches are dealt out evenly, in turn, to two to eight groups, or to a group each.
Where partitions are too many, three groups or more only get powers of two, and those of branches that fork again only
GPU counts. What is not tried is bounded by partitions that are wider than there is room for: each group gets one GPU
less than the next width that is tried, as any width between the two would become the smaller one in what is tried:

    tried   | 4 GPUs      | 2 GPUs |            stands for 5 + 2, 4 + 3, 6 + 3 and so on, on more GPUs
    bound   | 7 GPUs            | 3 GPUs   |    no slower than any of these
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from deeppool.costs.communication import CROSS_NODE, SAME_NODE, SAME_START, Locality
from deeppool.graph.series_parallel import ParallelBlock, branching_blocks

MAX_BRANCHES = 5
"""Most branches of which every grouping is tried; five have 52."""
MOST_EVEN = 8
"""Most groups of many branches; besides, each branch may have a group, all of one width."""
MOST_WIDTHS = 32
"""Most GPUs of which branches that fork again may have any number."""
MOST_PARTITIONS = 1000
"""Most partitions into one number of groups; more are limited to powers of two."""
MOST_LAYOUTS = 5000
"""Most layouts of such groups that are compared to find those to try."""


@dataclass(frozen=True, slots=True)
class BranchGroup:
    """A range of GPUs with the branches that run on it."""

    branches: tuple[int, ...]
    """Positions in the block, in the order in which they run."""
    width: int
    """Number of GPUs."""
    start: int
    """First GPU, from the start of the block's GPUs."""
    place: Locality
    """Locality of its GPUs, relative to those of the block's fork and join."""


Partition = tuple[BranchGroup, ...]
GroupShape = tuple[int, Locality]
"""Width and locality of a group: all that its cost depends on."""


@dataclass(frozen=True, slots=True, eq=False)
class PartitionSet:
    """Partitions of some GPUs among branches that no other partition dominates, ready for NumPy."""

    arrangements: tuple[Partition, ...]
    """Partitions to try, the one in sequence first; then those that bound all others."""
    tried: int
    """Number of partitions to try."""
    slots: tuple[GroupShape, ...]
    lanes: tuple[tuple[tuple[int, ...], int], ...]
    """Distinct groups: their branches, and which of ``slots`` they are. The last one has no branches."""
    members: NDArray[np.intp]
    """(group, most branches) which branch in which slot: branch x slots + slot; padded with the number behind."""
    used: NDArray[np.intp]
    """(partition, most groups) which of ``lanes``; padded with the last one."""

    @property
    def complete(self) -> bool:
        """Whether only dominated partitions are not tried."""
        return self.tried == len(self.arrangements)

    def slots_at(self, place: Locality) -> NDArray[np.intp]:
        """Returns (group,) per group the narrowest slot at ``place`` that is as wide, or the widest there."""
        there = sorted((width, number) for number, (width, at) in enumerate(self.slots) if at == place)
        widths = [self.slots[slot][0] for _, slot in self.lanes]
        return np.array([next((x for x in there if x[0] >= width), there[-1])[1] for width in widths])


def partitions_of(block: ParallelBlock, gpu_counts: tuple[int, ...], width: int, gpus_per_node: int) -> PartitionSet:
    """Returns the partitions of ``width`` GPUs among the branches of a block; see :func:`partition_set`."""
    branches = block.branches if len(block.branches) > 1 and gpu_counts else ()
    forking = frozenset(number for number, branch in enumerate(branches) if any(branching_blocks(branch)))
    if forking and width <= MOST_WIDTHS:
        forking, gpu_counts = frozenset(), tuple(range(1, width))
    return partition_set(len(block.branches), gpu_counts, width, gpus_per_node, forking)


@lru_cache(maxsize=1024)
def partition_set(
    branches: int,
    gpu_counts: tuple[int, ...],
    width: int,
    gpus_per_node: int,
    forking: frozenset[int] = frozenset(),
) -> PartitionSet:
    """Returns the partitions of ``width`` GPUs.

    Args:
        branches: their number. Of more than ``MAX_BRANCHES`` only groups with as many branches, or one more or less,
            are tried.
        gpu_counts: widths that a group may have, ascending.
        width: GPUs to partition.
        gpus_per_node: GPUs of a node of the cluster.
        forking: branches of which a group may have any number of GPUs, not only those that are tried.
    """
    widths = tuple(count for count in gpu_counts if count < width)
    found: list[Partition] = [(BranchGroup(tuple(range(branches)), width, 0, SAME_START),)]
    bounds: list[Partition] = []
    if branches > MAX_BRANCHES and widths:
        # Not every grouping is tried; no group is faster than each branch by itself on all GPUs.
        bounds.append(tuple(BranchGroup((x,), width, 0, SAME_START) for x in range(branches)))
    for groupings in _groupings(branches) if widths else ():
        groups = len(groupings[0])
        ways = len(groupings) * (math.factorial(groups) if branches <= MAX_BRANCHES else 1)
        layouts, every = _layouts_within(MOST_PARTITIONS // ways, groups, widths, width, gpus_per_node)
        new = [partition for groups in groupings for layout in layouts for partition in _assigned(groups, layout)]
        found += new
        if branches <= MAX_BRANCHES and (forking or not every):
            tried = widths if every else _powers(widths)
            wider = dict(zip(tried, (*(count - 1 for count in tried[1:]), width - 1), strict=True))
            bounds += [tuple(_widened(group, wider, forking if every else None) for group in groups) for groups in new]
    return _indexed(found, bounds, branches)


def _widened(group: BranchGroup, wider: Mapping[int, int], forking: frozenset[int] | None) -> BranchGroup:
    """Returns a group with more GPUs, as the module says; where ``forking`` is given, only one with such branches."""
    if forking is not None and forking.isdisjoint(group.branches):
        return group
    return replace(group, width=wider[group.width])


def _indexed(tried: Sequence[Partition], bounds: Sequence[Partition], branches: int) -> PartitionSet:
    found = (*tried, *bounds)
    slots = tuple(dict.fromkeys((lane.width, lane.place) for arrangement in found for lane in arrangement))
    numbers = {slot: number for number, slot in enumerate(slots)}

    def kind(lane: BranchGroup) -> tuple[tuple[int, ...], int]:
        return lane.branches, numbers[lane.width, lane.place]

    lanes = (*dict.fromkeys(kind(lane) for arrangement in found for lane in arrangement), ((), 0))
    position = {lane: number for number, lane in enumerate(lanes)}
    members = np.full((len(lanes), branches), branches * len(slots))
    for number, (group, slot) in enumerate(lanes):
        members[number, : len(group)] = [branch * len(slots) + slot for branch in group]
    used = np.full((len(found), max(map(len, found))), len(lanes) - 1)
    for row, arrangement in enumerate(found):
        used[row, : len(arrangement)] = [position[kind(lane)] for lane in arrangement]
    return PartitionSet(found, len(tried), slots, lanes, members, used)


Grouping = tuple[tuple[int, ...], ...]
"""Groups of branches."""


def _groupings(branches: int) -> Iterator[list[Grouping]]:
    """Yields the partitions of the branches into two or more groups, those into equally many together."""
    if branches > MAX_BRANCHES:
        counts = (count for count in sorted({*range(2, MOST_EVEN + 1), branches}) if count <= branches)
        yield from ([tuple(tuple(range(branches))[first::count] for first in range(count))] for count in counts)
        return
    found = sorted(_set_partitions(tuple(range(branches))), key=len)
    yield from (list(groupings) for count, groupings in itertools.groupby(found, key=len) if count > 1)


def _assigned(groups: Grouping, layout: "Layout") -> Iterator[Partition]:
    """Yields the partitions that give each group of branches a place of a layout."""
    if sum(map(len, groups)) > MAX_BRANCHES:
        # The first groups have the most branches.
        spans = sorted(layout, key=lambda span: -span[0])
        yield tuple(BranchGroup(group, *span) for group, span in zip(groups, spans, strict=True))
        return
    seen = set()
    for order in itertools.permutations(groups):
        lanes = tuple(BranchGroup(group, *span) for group, span in zip(order, layout, strict=True))
        # Two groups of one width and locality may swap their branches; that is the same partition.
        key = frozenset((lane.branches, lane.width, lane.place) for lane in lanes)
        if key not in seen:
            seen.add(key)
            yield lanes


def _set_partitions(items: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for groups in _set_partitions(rest):
        yield ((first,), *groups)
        for position, group in enumerate(groups):
            yield (*groups[:position], (first, *group), *groups[position + 1 :])


Span = tuple[int, int, Locality]
"""Width, start and locality of a group."""
Layout = tuple[Span, ...]
"""Groups side by side, in the order of their GPUs."""
Kinds = tuple[tuple[int, Locality], ...]
"""Widths and localities of groups, ascending."""


class _TooManyLayoutsError(Exception):
    """Raised where not every layout can be tried."""


def _layouts_within(
    most: int, groups: int, widths: tuple[int, ...], room: int, gpus_per_node: int
) -> tuple[Sequence[Layout], bool]:
    """Returns the layouts to try, and whether these are all; those of powers of two if all are more than ``most``."""
    if groups > MOST_EVEN:
        return list(_equal_layouts(groups, widths, room, gpus_per_node)), False
    powers = _powers(widths)
    if groups == 2 or powers == widths:
        return _layouts(groups, widths, room, gpus_per_node), True
    with suppress(_TooManyLayoutsError):
        layouts = _layouts(groups, widths, room, gpus_per_node, MOST_LAYOUTS)
        if len(layouts) <= most:
            return layouts, True
    return _layouts(groups, powers, room, gpus_per_node), False


def _powers(widths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(width for width in widths if width & (width - 1) == 0)


def _equal_layouts(groups: int, widths: tuple[int, ...], room: int, gpus_per_node: int) -> Iterator[Layout]:
    """Yields the layouts of groups of one width."""
    for width in widths:
        starts = [0]
        for _ in range(groups - 1):
            starts.append(_next_start(starts[-1] + width, width, gpus_per_node))
        if starts[-1] + width <= room:
            yield tuple((width, start, _place(start, width, gpus_per_node)) for start in starts)


@lru_cache(maxsize=1024)
def _layouts(
    groups: int,
    widths: tuple[int, ...],
    room: int,
    gpus_per_node: int,
    most: float = math.inf,
) -> Sequence[Layout]:
    """Returns the layouts of which no group could be wider or nearer, one of those with equal groups.

    Raises:
        _TooManyLayoutsError: there are more than ``most`` to compare.
    """
    left = most

    @cache
    def behind(end: int, count: int) -> Sequence[Layout]:
        """Returns the layouts of ``count`` groups on the GPUs from ``end`` on."""
        nonlocal left
        if not count:
            return ((),)
        found: dict[Kinds, Layout] = {}
        for width in widths:
            start = _next_start(end, width, gpus_per_node)
            # The others need a GPU each at least.
            if start + width + count - 1 <= room:
                span = width, start, _place(start, width, gpus_per_node)
                for others in behind(start + width, count - 1):
                    found.setdefault(_kinds((span, *others)), (span, *others))
        left -= len(found)
        if left < 0:
            raise _TooManyLayoutsError
        return list(_uncovered(found))

    return behind(0, groups)


def _kinds(layout: Layout) -> Kinds:
    return tuple(sorted((width, place) for width, _, place in layout))


def _uncovered(layouts: dict[Kinds, Layout]) -> Iterator[Layout]:
    """Yields the layouts that no other one covers."""
    kept: list[Kinds] = []

    def size(kinds: Kinds) -> tuple[int, int]:
        return -sum(width for width, _ in kinds), sum(place for _, place in kinds)

    # A layout can only be covered by one of more GPUs, or of as many that are nearer.
    for kinds in sorted(layouts, key=size):
        if not any(_covers(other, kinds) for other in kept):
            kept.append(kinds)
            yield layouts[kinds]


def _covers(kinds: Kinds, others: Kinds) -> bool:
    """Whether each of the other groups can have one of these to itself that is as wide and no slower to reach."""
    if not others:
        return True
    # Ascending, so that each of these is as wide as the first one of the others.
    if any(width < other for (width, _), (other, _) in zip(kinds, others, strict=True)):
        return False
    wanted = others[0][1]
    return any(
        place <= wanted and _covers((*kinds[:index], *kinds[index + 1 :]), others[1:])
        for index, (_, place) in enumerate(kinds)
    )


def _next_start(start: int, width: int, gpus_per_node: int) -> int:
    left_in_node = -start % gpus_per_node
    if start == 0 or width <= left_in_node or (width <= gpus_per_node and left_in_node == 0):
        return start
    return start + left_in_node


def _place(start: int, width: int, gpus_per_node: int) -> Locality:
    if start == 0:
        return SAME_START
    return SAME_NODE if start + width <= gpus_per_node else CROSS_NODE

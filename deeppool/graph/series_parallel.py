"""Series-parallel decomposition of a layer graph into a tree of chains, branches and other regions.

A *cut* is a layer that every path passes. Between two neighbouring cuts, the fork and the join, lie
branches: the connected pieces that remain when both are taken away, and perhaps a direct edge. Each
branch is cut again in the same way; [] is a Series, {} a ParallelBlock:

    0 ─┬─ 1 ── 2 ─┬─ 4      [0, {[1, 2] | [3]}, 4]
       └──── 3 ───┘

A branch may fork and meet again only at the join outside: then its series has a tail,

    0 ─┬─ 1 ─┬─ 2 ─┬─ 5     [0, {[1, tail {[2] | [3]}] | [4]}, 5]
       │     └─ 3 ─┤
       └─ 4 ───────┘

What lies between two cuts and has a piece without a cut of its own (DenseNet's, for example) is not
series-parallel and becomes a :class:`NonSeriesParallel` region.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

INPUT = -1
"""Virtual fork before the first layers: data is loaded where it is needed, at no cost."""


@dataclass(frozen=True)
class Series:
    """Layers that follow one another; between two of them lies an edge, a block or a non-series-parallel region."""

    layers: tuple[int, ...]
    blocks: tuple["ParallelBlock | NonSeriesParallel | None", ...]
    """``blocks[k]`` lies before ``layers[k]``: None for an edge. The first one hangs on the fork outside."""
    tail: "ParallelBlock | None" = None
    """Branches after the last layer, which end at the join outside."""

    @cached_property
    def _all_layers(self) -> tuple[int, ...]:
        steps = ((*layers_of(block), layer) for layer, block in zip(self.layers, self.blocks, strict=True))
        return (*chain.from_iterable(steps), *layers_of(self.tail))

    @cached_property
    def _branching(self) -> "tuple[ParallelBlock, ...]":
        return tuple(chain.from_iterable(branching_blocks(block) for block in (*self.blocks, self.tail) if block))


@dataclass(frozen=True)
class ParallelBlock:
    """Branches between a fork and its join."""

    branches: tuple[Series, ...]
    direct: bool
    """The join reads the fork too, as a residual connection does."""

    @cached_property
    def _all_layers(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(map(layers_of, self.branches)))

    @cached_property
    def _branching(self) -> "tuple[ParallelBlock, ...]":
        own = (self,) if len(self.branches) > 1 else ()
        return (*own, *chain.from_iterable(map(branching_blocks, self.branches)))


@dataclass(frozen=True, slots=True)
class NonSeriesParallel:
    """Layers between a fork and its join, in topological order, that no branches describe."""

    layers: tuple[int, ...]


def decompose(predecessors: Sequence[tuple[int, ...]]) -> Series:
    """Decomposes a graph into a tree, cached for recent graphs; complexity O(layers + edges) per level of nesting.

    Args:
        predecessors: per layer the layers it reads, all earlier ones; none for layers that read only data,
            which hang on a fork of their own, :data:`INPUT`. The last layer ends every path.
    """
    return _decompose(tuple(predecessors))


@lru_cache(maxsize=64)
def _decompose(predecessors: tuple[tuple[int, ...], ...]) -> Series:
    edges = {index: sources or (INPUT,) for index, sources in enumerate(predecessors)}
    found = _series(tuple(edges), edges, INPUT, len(edges))
    assert found is not None, "the last layer is a cut"
    return found


def layers_of(part: Series | ParallelBlock | NonSeriesParallel | None) -> tuple[int, ...]:
    """Returns all layers of a part of the tree, without the join of a block."""
    if part is None:
        return ()
    return part.layers if isinstance(part, NonSeriesParallel) else part._all_layers


def parts_of(part: Series | ParallelBlock | NonSeriesParallel) -> Iterator[Series | ParallelBlock | NonSeriesParallel]:
    """Yields a part of the tree and all parts within it."""
    yield part
    if isinstance(part, ParallelBlock):
        inner: tuple[Series | ParallelBlock | NonSeriesParallel | None, ...] = part.branches
    else:
        inner = () if isinstance(part, NonSeriesParallel) else (*part.blocks, part.tail)
    for other in inner:
        if other is not None:
            yield from parts_of(other)


def branching_blocks(part: Series | ParallelBlock | NonSeriesParallel) -> tuple[ParallelBlock, ...]:
    """Returns the blocks of several branches, which may run side by side, within a part of the tree."""
    return () if isinstance(part, NonSeriesParallel) else part._branching


Edges = dict[int, tuple[int, ...]]


def _series(layers: tuple[int, ...], predecessors: Edges, fork: int, join: int) -> Series | None:
    """Cuts a connected piece that reads only ``fork`` outside and is read only by ``join``; None without a cut."""
    furthest = {index: index for index in (fork, *layers)}
    for layer in (*layers, join):
        for source in predecessors.get(layer, ()):
            if source in furthest:
                furthest[source] = max(furthest[source], layer)
    cuts = []
    reach = furthest[fork] if furthest[fork] < join else max(s for s in layers if fork in predecessors[s])
    for layer in layers:
        if reach <= layer:
            cuts.append(layer)
        reach = max(reach, furthest[layer])
    if not cuts:
        return None
    blocks = []
    inside = iter(layers)
    for start, end in zip((fork, *cuts), (*cuts, join), strict=True):
        between = []
        for layer in inside:
            if layer == end:
                break
            between.append(layer)
        blocks.append(_between(tuple(between), predecessors, start, end))
    if isinstance(blocks[-1], NonSeriesParallel):
        return None
    return Series(tuple(cuts), tuple(blocks[:-1]), blocks[-1])


def _between(
    layers: tuple[int, ...], predecessors: Edges, fork: int, join: int
) -> ParallelBlock | NonSeriesParallel | None:
    """Decomposes the layers between two neighbouring cuts."""
    if not layers:
        return None
    branches = [_series(piece, predecessors, fork, join) for piece in _pieces(layers, predecessors)]
    if any(branch is None for branch in branches):
        return NonSeriesParallel(layers)
    return ParallelBlock(tuple(filter(None, branches)), direct=fork in predecessors.get(join, ()))


def _pieces(layers: tuple[int, ...], predecessors: Edges) -> list[tuple[int, ...]]:
    """Returns connected components, each in topological order, ordered by their first layer."""
    parent = {layer: layer for layer in layers}

    def root(layer: int) -> int:
        while parent[layer] != layer:
            layer = parent[layer]
        return layer

    for layer in layers:
        for source in predecessors[layer]:
            if source in parent:
                parent[root(layer)] = root(source)
    pieces: dict[int, list[int]] = {}
    for layer in layers:
        pieces.setdefault(root(layer), []).append(layer)
    return sorted(tuple(piece) for piece in pieces.values())

"""Chains, branches and joins: a layer graph as a tree of series and blocks.

A *cut* is a layer that every path passes. Between two neighbouring cuts, the fork and the join, lie
branches: the connected pieces that remain when both are taken away, and perhaps a direct edge. Each
branch is cut again in the same way:

    0 ─┬─ 1 ── 2 ─┬─ 4      Series(0, Block(branches=(Series(1, 2), Series(3))), 4)
       └──── 3 ───┘

A piece with more than one layer and no cut of its own (DenseNet's, for example) is not
series-parallel and becomes a :class:`Tangle`.
"""

from dataclasses import dataclass

from deeppool.graph.layer import LayerGraph


@dataclass(frozen=True, slots=True)
class Series:
    """Layers that follow one another; between two of them lies an edge or a block."""

    layers: tuple[int, ...]
    blocks: tuple["Block | None", ...]
    """``blocks[k]`` lies before ``layers[k]``: None for an edge. The first one hangs on the fork outside."""


@dataclass(frozen=True, slots=True)
class Block:
    """What lies between a fork and its join."""

    branches: tuple["Series | Tangle", ...]
    direct: bool
    """The join reads the fork too, as a residual connection does."""


@dataclass(frozen=True, slots=True)
class Tangle:
    """Layers, in topological order, that no series or block describes."""

    layers: tuple[int, ...]


def decompose(graph: LayerGraph) -> Series | Tangle:
    """The whole graph as a tree; complexity O(layers + edges) per level of nesting.

    Layers that read only data hang on a fork of their own, numbered -1.
    """
    predecessors = {index: layer.predecessors or (-1,) for index, layer in enumerate(graph.layers)}
    return _series(tuple(predecessors), predecessors, -1, len(predecessors))


def has_tangle(tree: Series | Tangle) -> bool:
    """Whether some part of two or more layers is not series-parallel."""
    if isinstance(tree, Tangle):
        return len(tree.layers) > 1
    return any(has_tangle(branch) for block in tree.blocks if block for branch in block.branches)


Edges = dict[int, tuple[int, ...]]


def _series(layers: tuple[int, ...], predecessors: Edges, fork: int, join: int) -> Series | Tangle:
    """Cuts a connected piece that reads nothing outside but ``fork`` and is read only by ``join``."""
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
        return Tangle(layers)
    blocks = []
    for start, end in zip((fork, *cuts), (*cuts, join), strict=True):
        between = tuple(layer for layer in layers if start < layer < end)
        branches = tuple(_series(piece, predecessors, start, end) for piece in _pieces(between, predecessors))
        blocks.append(Block(branches, direct=start in predecessors.get(end, ())) if branches else None)
    # A block that ends only at the caller's join belongs to no series of this piece.
    return Series(tuple(cuts), tuple(blocks[:-1])) if blocks[-1] is None else Tangle(layers)


def _pieces(layers: tuple[int, ...], predecessors: Edges) -> list[tuple[int, ...]]:
    """Connected components, each in topological order, ordered by their first layer."""
    home = {layer: layer for layer in layers}

    def root(layer: int) -> int:
        while home[layer] != layer:
            layer = home[layer]
        return layer

    for layer in layers:
        for source in predecessors[layer]:
            if source in home:
                home[root(layer)] = root(source)
    pieces: dict[int, list[int]] = {}
    for layer in layers:
        pieces.setdefault(root(layer), []).append(layer)
    return sorted(tuple(piece) for piece in pieces.values())

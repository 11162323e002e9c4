"""Hierarchical: reduce-scatter inside each node, a ring between the nodes per share, all-gather inside.

Between nodes each rank sends only its share: 1 / n of the bytes that a flat ring would, with n ranks a node.
"""

from functools import lru_cache

from deeppool.collectives.patterns.fold import Rounds
from deeppool.collectives.patterns.ring import ring, ring_all_gather, ring_reduce_scatter
from deeppool.collectives.schedule import Schedule, schedule_of


@lru_cache(maxsize=256)
def hierarchical(ranks: int, per_node: int) -> Schedule:
    """Returns the hierarchical all-reduce, of two or more whole nodes; of other counts, the ring.

    Args:
        ranks: number of ranks, numbered node by node.
        per_node: ranks of a node.
    """
    nodes, rest = divmod(ranks, per_node)
    if nodes < 2 or rest or per_node == 1:
        return ring(ranks)
    shares = [(local * nodes, (local + 1) * nodes) for local in range(per_node)]
    inside = [range(node * per_node, (node + 1) * per_node) for node in range(nodes)]
    # Local rank m holds share m + 1 after the reduce-scatter.
    between = [
        (range(local, ranks, per_node), [(chunk, chunk + 1) for chunk in range(*shares[(local + 1) % per_node])])
        for local in range(per_node)
    ]
    rounds = [
        *_together([ring_reduce_scatter(members, shares) for members in inside]),
        *_together([ring_reduce_scatter(*group) + ring_all_gather(*group) for group in between]),
        *_together([ring_all_gather(members, shares) for members in inside]),
    ]
    return schedule_of("hierarchical", ranks, ranks, rounds)


def _together(groups: list[Rounds]) -> Rounds:
    """Returns the rounds in which all groups perform theirs side by side."""
    return [[transfer for transfers in number for transfer in transfers] for number in zip(*groups, strict=True)]

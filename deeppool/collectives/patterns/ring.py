"""Ring: each rank sends to the next one only; the fewest bytes per rank, and the most rounds.

Reduce-scatter, then all-gather (Patarasuk and Yuan, 2009), of P - 1 rounds each: rank r sends chunk r - k in round k,
and ends the first half with the sum of chunk r + 1. Every link carries 2 (P - 1) / P of the bytes.
"""

from collections.abc import Sequence
from functools import lru_cache

from deeppool.collectives.schedule import Schedule, Transfer, schedule_of

Ranges = Sequence[tuple[int, int]]
"""First chunk and the one after the last, of each rank's share."""


@lru_cache(maxsize=256)
def ring(ranks: int) -> Schedule:
    """Returns the ring all-reduce."""
    members, shares = range(ranks), [(chunk, chunk + 1) for chunk in range(ranks)]
    rounds = [*ring_reduce_scatter(members, shares), *ring_all_gather(members, shares)]
    return schedule_of("ring", ranks, ranks, rounds)


def ring_reduce_scatter(members: Sequence[int], shares: Ranges) -> list[list[Transfer]]:
    """Returns rounds after which member m holds the sum of share (m + 1) mod P."""
    count = len(members)
    return [
        [
            Transfer(members[m], members[(m + 1) % count], *shares[(m - number) % count], reduces=True)
            for m in range(count)
        ]
        for number in range(count - 1)
    ]


def ring_all_gather(members: Sequence[int], shares: Ranges) -> list[list[Transfer]]:
    """Returns rounds that bring every member the shares which :func:`ring_reduce_scatter` leaves."""
    count = len(members)
    return [
        [Transfer(members[m], members[(m + 1) % count], *shares[(m + 1 - number) % count]) for m in range(count)]
        for number in range(count - 1)
    ]

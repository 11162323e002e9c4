"""Broadcast along a binomial tree: in each round, every rank that has the buffer sends it to one that has not."""

from functools import lru_cache

from deeppool.collectives.schedule import Schedule, Transfer, schedule_of


@lru_cache(maxsize=256)
def broadcast_tree(ranks: int) -> Schedule:
    """Returns the broadcast of rank 0's buffer to all, in ceil(log2 P) rounds."""
    rounds = []
    distance = 1
    while distance < ranks:
        senders = range(min(distance, ranks - distance))
        rounds.append([Transfer(rank, rank + distance, 0, 1) for rank in senders])
        distance *= 2
    return schedule_of("broadcast-tree", ranks, 1, rounds)

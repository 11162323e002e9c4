"""Broadcast along a binomial tree: in each round, every rank that has the buffer sends it to one that has not."""

from functools import lru_cache

from deeppool.collectives.schedule import Schedule, Transfer, schedule_of


@lru_cache(maxsize=256)
def broadcast_tree(ranks: int, root: int = 0) -> Schedule:
    """Returns the broadcast of a rank's buffer to all, in ceil(log2 P) rounds."""
    rounds = []
    distance = 1
    while distance < ranks:
        # Positions are counted from the root.
        senders = range(min(distance, ranks - distance))
        rounds.append([Transfer((root + at) % ranks, (root + at + distance) % ranks, 0, 1) for at in senders])
        distance *= 2
    return schedule_of("broadcast-tree", ranks, 1, rounds)

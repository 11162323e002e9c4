"""Halving-doubling: the bytes of a ring in 2 log2 P rounds (Rabenseifner, 2004).

Recursive halving: ranks at distance P / 2, P / 4, …, 1 exchange and add the half of their range that the other one
keeps, so rank r ends with the sum of chunk r. Recursive doubling sends the same ranges back, in reverse order.
"""

from functools import lru_cache

from deeppool.collectives.patterns.fold import Rounds, folded
from deeppool.collectives.schedule import Schedule, Transfer, schedule_of


@lru_cache(maxsize=256)
def halving_doubling(ranks: int) -> Schedule:
    """Returns the all-reduce by recursive halving and doubling, of any number of ranks."""
    chunks = 2 ** (ranks.bit_length() - 1)
    return schedule_of("halving-doubling", ranks, chunks, folded(ranks, chunks, _halving_doubling))


def _halving_doubling(ranks: int) -> Rounds:
    distances = [2**bit for bit in range(ranks.bit_length() - 1)]
    halving = [
        [Transfer(rank, rank ^ distance, *_kept(rank ^ distance, distance), reduces=True) for rank in range(ranks)]
        for distance in reversed(distances)
    ]
    doubling = [
        [Transfer(rank, rank ^ distance, *_kept(rank, distance)) for rank in range(ranks)] for distance in distances
    ]
    return [*halving, *doubling]


def _kept(rank: int, distance: int) -> tuple[int, int]:
    """Returns the chunks that a rank keeps of an exchange at a distance: the aligned range that holds its own."""
    start = rank - rank % distance
    return start, start + distance

"""Recursive doubling: whole buffers between ranks at distance 1, 2, 4, …; the fewest rounds, for small messages.

Both partners add the same two values, so all ranks compute the same bits.
"""

from functools import lru_cache

from deeppool.collectives.patterns.fold import Rounds, folded
from deeppool.collectives.schedule import Schedule, Transfer, schedule_of


@lru_cache(maxsize=256)
def recursive_doubling(ranks: int) -> Schedule:
    """Returns the all-reduce by recursive doubling, of any number of ranks."""
    return schedule_of("recursive-doubling", ranks, 1, folded(ranks, 1, _doubling))


def _doubling(ranks: int) -> Rounds:
    distances = [2**bit for bit in range(ranks.bit_length() - 1)]
    return [[Transfer(rank, rank ^ distance, 0, 1, reduces=True) for rank in range(ranks)] for distance in distances]

"""Fold of rank counts that are no power of two, for patterns that pair ranks by the bits of their numbers."""

from collections.abc import Callable

from deeppool.collectives.schedule import Transfer

Rounds = list[list[Transfer]]


def folded(ranks: int, chunks: int, of_power: Callable[[int], Rounds]) -> Rounds:
    """Returns the rounds of a pattern of any number of ranks (Thakur, Rabenseifner, Gropp, 2005).

    The ranks beyond the largest power of two first add their buffers to those of the first ranks, and at the end
    receive the sums.

    Args:
        ranks: number of ranks.
        chunks: parts of the buffer.
        of_power: rounds of the pattern among the first ranks, a power of two.
    """
    power: int = 2 ** (ranks.bit_length() - 1)
    extra = range(power, ranks)
    if not extra:
        return of_power(power)
    fold = [Transfer(rank, rank - power, 0, chunks, reduces=True) for rank in extra]
    unfold = [Transfer(rank - power, rank, 0, chunks) for rank in extra]
    return [fold, *of_power(power), unfold]

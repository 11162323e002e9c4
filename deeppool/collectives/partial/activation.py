"""Activation of a round: a broadcast that any rank may start, and several may start at once.

Dimension i joins each rank to the one 2^i further on. Who starts sends on all dimensions; who hears on dimension i
sends on those above it. That is the union of P binomial trees, one rooted at each rank (Li et al., 2020, figure 6), for
any number of ranks: the distance to a rank is a sum of powers of two, and the message follows them in ascending order.
Each send is made once a round, however many start.
"""

from collections.abc import Iterator


class Activation:
    """One rank's part in the activation of one round."""

    def __init__(self, rank: int, ranks: int) -> None:
        """Takes this rank and the number of ranks."""
        self._rank, self._ranks = rank, ranks
        self._sent: set[int] = set()

    def start(self) -> Iterator[tuple[int, int]]:
        """Yields the destination and dimension of the messages with which this rank starts a round."""
        return self.hear(-1)

    def hear(self, dimension: int) -> Iterator[tuple[int, int]]:
        """Yields the destination and dimension of the messages that a message on a dimension leads to."""
        for above in range(dimension + 1, (self._ranks - 1).bit_length()):
            if above not in self._sent:
                self._sent.add(above)
                yield (self._rank + 2**above) % self._ranks, above

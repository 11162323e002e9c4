"""What one call of a partial all-reduce returns, over any transport."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from deeppool.collectives.partial.rounds import RoundResult

TIMEOUT = 30.0
"""Seconds to wait for other ranks by default."""


@dataclass(frozen=True, slots=True)
class Received:
    """What one call of a partial all-reduce returns."""

    results: tuple[RoundResult, ...]
    """The rounds to apply, in their order: ``latest`` has one, ``log`` all that this rank had not received."""
    accepted: bool
    """Whether these rounds, or earlier ones, hold all gradients of this rank."""


class PartialRounds(Protocol):
    """One rank's side of partial all-reduces."""

    def all_reduce(self, gradient: NDArray[Any], number: int | None = None) -> Received:
        """Adds a gradient, and returns the results that this rank has not received.

        Waits if there are none, unless this rank has received the round ``number``, which the call is for.
        """

    def drain(self) -> Iterator[RoundResult]:
        """Delivers what is left; yields the rounds to apply, and ends when all ranks have called it."""

    def pending(self) -> tuple[NDArray[Any], int]:
        """Returns a copy of the gradients that no round has taken, and their number."""

    def restore(self, pending: NDArray[Any], count: int) -> None:
        """Adds gradients of an earlier run to this rank's send buffer; the next round takes them."""

    def close(self, *, agreed: bool = False) -> None:
        """Ends this rank's part; unless all have agreed to end, or it has drained, the others end in an error."""

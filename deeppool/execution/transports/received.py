"""What one call of a partial all-reduce returns, over any transport."""

from dataclasses import dataclass

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

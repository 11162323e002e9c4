"""Whether the background slows the foreground down: with next to nothing of the time and with much, by turns.

Turns are short, so that whatever else changes the foreground's speed, more slowly, is the same in both.
"""

import math
from statistics import fmean

from deeppool.scheduling.slowdown import clipped

TURN = 4
"""Iterations, of which the first has the small share: it costs the background time, and the others tell as much."""
LONGEST = 48
"""Iterations of a trial; then what it has found must do."""
WEIGHT = 4
"""Iterations that what is known of the noise counts for."""
SURE = 2.5
"""Standard errors by which the cost must differ from the bound for a trial to end earlier."""


class Trial:
    """A sequence of turns, the first of them with the small share."""

    def __init__(self, low: float, high: float) -> None:
        """Takes the two shares."""
        self._shares = low, high
        self.seen: list[tuple[float, float]] = []
        """Share and slowdown of each iteration."""
        self._noise = 0.0

    @property
    def share(self) -> float:
        """For the next iteration."""
        return self._shares[len(self.seen) % TURN > 0]

    def collocated(self, share: float, slowdown: float, noise: float) -> None:
        """One more iteration, unless it had neither share; ``noise`` is the standard deviation of one that is alone."""
        if share in self._shares:
            self.seen.append((share, slowdown))
            self._noise = noise

    def over(self, bound: float) -> bool:
        """Whether it is known on which side of ``bound`` the cost lies, or enough was tried."""
        low, high = self._sides()
        # What was decided before the latest iteration was known may have had both of the first ones small.
        if min(len(low), len(high)) < 2:
            return False
        freedom = len(low) + len(high) - 2
        squares = sum((x - fmean(side)) ** 2 for side in (low, high) for x in side)
        # A few iterations may agree by chance.
        variance = (squares + WEIGHT * self._noise**2) / (freedom + WEIGHT)
        error = math.sqrt(variance * (1 / len(low) + 1 / len(high))) / (self._shares[1] - self._shares[0])
        reach = SURE * (1 + 2 / freedom) * error
        return len(self.seen) >= LONGEST or not self.cost - reach <= bound <= self.cost + reach

    @property
    def cost(self) -> float:
        """Slowdown by the whole of the time."""
        low, high = self._sides()
        return (fmean(high) - fmean(low)) / (self._shares[1] - self._shares[0])

    @property
    def level(self) -> float:
        """Slowdown without any background: what something else has done."""
        low, _ = self._sides()
        return fmean(low) - self.cost * self._shares[0]

    def _sides(self) -> tuple[list[float], list[float]]:
        low, high = ([slowdown for share, slowdown in self.seen if share == side] for side in self._shares)
        return clipped(low), clipped(high)

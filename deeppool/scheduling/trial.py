"""Whether the background slows the foreground down: with next to nothing of the time and with much, by turns.

Turns are short, and each is compared within itself, so that whatever else changes the foreground's speed, more
slowly, is the same on both sides. A trial ends when it is sure that the background costs more than the bound, or less
than it was suspected of, or after a while with neither.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from deeppool.scheduling.slowdown import clipped, widening

BLOCK = 4
"""Iterations, of which the first has the small share: it costs the background time, and the others tell as much."""
MAX_ITERATIONS = 48
"""Iterations of a trial; then what it has found must do."""
NOISE_WEIGHT = 4
"""Turns that what is known of the noise counts for."""
SURE = 2.5
"""Standard errors by which the cost must differ from what it is compared with."""
KEPT_BLOCKS = 36
"""Turns of earlier trials that still count."""


class Trial:
    """A sequence of turns, the first of them with the small share."""

    def __init__(self, low: float, high: float, *, suspected: float = 0.0, earlier: Iterable[float] = ()) -> None:
        """Takes the two shares.

        Args:
            low: next to nothing.
            high: what the background may have.
            suspected: slowdown for which the background may be to blame; 0: none, the cost itself is asked for.
            earlier: :attr:`interleaved` of earlier trials of the same background.
        """
        self._shares = low, high
        self._suspected = suspected
        self._earlier = tuple(earlier)
        self.iterations: list[tuple[float, float]] = []
        """Share and slowdown of each iteration."""
        self._noise = 0.0

    @property
    def share(self) -> float:
        """For the next iteration."""
        return self._shares[len(self.iterations) % BLOCK > 0]

    def collocated(self, share: float, slowdown: float, noise: float) -> None:
        """One more iteration, unless it had neither share; ``noise`` is the standard deviation of one that is alone."""
        if share in self._shares:
            self.iterations.append((share, slowdown))
            self._noise = noise

    def over(self, bound: float) -> bool:
        """Whether enough is known, or was tried."""
        if len(self._own_interleaved) < 2:
            return False
        cost, reach = self._estimates()[0]
        refuted = cost + reach < max(bound, self._suspected / 2)
        return (
            refuted
            or len(self.iterations) >= MAX_ITERATIONS
            or any(cost - reach > bound for cost, reach in self._estimates())
        )

    def attributed_slowdown(self, bound: float) -> float | None:
        """The cost, where it is likely to be more than the bound, and surely more than nothing; else None."""
        return next((cost for cost, reach in self._estimates() if cost > bound and cost > reach), None)

    def _estimates(self) -> tuple[tuple[float, float], ...]:
        """The cost, and by how much it may be wrong: by this trial, and by it and those that are remembered."""
        return self._estimate(self._own_interleaved), self._estimate(self.interleaved)

    @property
    def cost(self) -> float:
        """Slowdown by the whole of the time, so this trial."""
        return self._estimate(self._own_interleaved)[0]

    @property
    def level(self) -> float:
        """Slowdown without any background: what something else has done."""
        low = clipped([slowdown for share, slowdown in self.iterations if share == self._shares[0]])
        return fmean(low) - self.cost * self._shares[0]

    @property
    def interleaved(self) -> list[float]:
        """What each turn says of the cost, those of earlier trials first."""
        return [*self._earlier, *self._own_interleaved][-KEPT_BLOCKS:]

    @property
    def _own_interleaved(self) -> list[float]:
        """Those of this trial; as orders come late, the small side may be longer."""
        interleaved: list[tuple[list[float], list[float]]] = []
        for share, slowdown in self.iterations:
            small = share == self._shares[0]
            if small and (not interleaved or interleaved[-1][1]):
                interleaved.append(([], []))
            if interleaved:
                interleaved[-1][not small].append(slowdown)
        return [(fmean(high) - fmean(low)) / self._share_difference for low, high in interleaved if high]

    def _estimate(self, interleaved: Sequence[float]) -> tuple[float, float]:
        """The cost, and by how much it may be wrong."""
        kept = clipped(interleaved)
        cost, freedom = fmean(kept), len(kept) - 1
        # A few turns may agree by chance.
        expected = (1 + 1 / (BLOCK - 1)) * (self._noise / self._share_difference) ** 2
        variance = (sum((turn - cost) ** 2 for turn in kept) + NOISE_WEIGHT * expected) / (freedom + NOISE_WEIGHT)
        return cost, SURE * widening(freedom + NOISE_WEIGHT) * math.sqrt(variance / len(kept))

    @property
    def _share_difference(self) -> float:
        return self._shares[1] - self._shares[0]

"""Decides whether the background slows the foreground, by interleaving iterations with a minimal and a large share.

Blocks are short, and each is compared within itself, so that slower changes of the foreground's speed affect both
sides. A trial ends when the cost is significantly above the bound or below the suspected slowdown, or after a limit.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from deeppool.scheduling.slowdown import clipped, widening

BLOCK = 4
"""Iterations of a block. The first has the small share, which costs the background time: one is enough."""
MAX_ITERATIONS = 48
"""Limit of a trial."""
NOISE_WEIGHT = 4
"""Weight of the known noise in blocks, as a prior of the variance."""
SURE = 2.5
"""Standard errors by which the cost must differ to be significant."""
KEPT_BLOCKS = 36
"""Blocks of earlier trials that are used."""


class Trial:
    """Interleaved iterations with two shares, starting with the small one."""

    def __init__(self, low: float, high: float, *, suspected: float = 0.0, earlier: Iterable[float] = ()) -> None:
        """Takes the two shares.

        Args:
            low: minimal share.
            high: share that the background may have.
            suspected: slowdown that the background may cause; 0: the cost itself is measured.
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
        """Share for the next iteration."""
        return self._shares[len(self.iterations) % BLOCK > 0]

    def collocated(self, share: float, slowdown: float, noise: float) -> None:
        """Records an iteration with one of the shares; ``noise`` is the standard deviation of one alone."""
        if share in self._shares:
            self.iterations.append((share, slowdown))
            self._noise = noise

    def over(self, bound: float) -> bool:
        """Whether the result is significant, or the limit reached."""
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
        """Returns the cost if it is likely above the bound and significantly above zero, else None."""
        return next((cost for cost, reach in self._estimates() if cost > bound and cost > reach), None)

    def _estimates(self) -> tuple[tuple[float, float], ...]:
        """Returns cost and error by this trial alone, and by it and earlier ones."""
        return self._estimate(self._own_interleaved), self._estimate(self.interleaved)

    @property
    def cost(self) -> float:
        """Slowdown at a share of 1, by this trial."""
        return self._estimate(self._own_interleaved)[0]

    @property
    def level(self) -> float:
        """Slowdown at a share of 0, which has another cause."""
        low = clipped([slowdown for share, slowdown in self.iterations if share == self._shares[0]])
        return fmean(low) - self.cost * self._shares[0]

    @property
    def interleaved(self) -> list[float]:
        """Cost estimates of the interleaved blocks, those of earlier trials first."""
        return [*self._earlier, *self._own_interleaved][-KEPT_BLOCKS:]

    @property
    def _own_interleaved(self) -> list[float]:
        """Cost estimates of this trial's blocks; as limits arrive late, the small side may be longer."""
        interleaved: list[tuple[list[float], list[float]]] = []
        for share, slowdown in self.iterations:
            small = share == self._shares[0]
            if small and (not interleaved or interleaved[-1][1]):
                interleaved.append(([], []))
            if interleaved:
                interleaved[-1][not small].append(slowdown)
        return [(fmean(high) - fmean(low)) / self._share_difference for low, high in interleaved if high]

    def _estimate(self, interleaved: Sequence[float]) -> tuple[float, float]:
        """Returns the mean cost and its error."""
        kept = clipped(interleaved)
        cost, freedom = fmean(kept), len(kept) - 1
        # A few blocks may agree by chance.
        expected = (1 + 1 / (BLOCK - 1)) * (self._noise / self._share_difference) ** 2
        variance = (sum((turn - cost) ** 2 for turn in kept) + NOISE_WEIGHT * expected) / (freedom + NOISE_WEIGHT)
        return cost, SURE * widening(freedom + NOISE_WEIGHT) * math.sqrt(variance / len(kept))

    @property
    def _share_difference(self) -> float:
        return self._shares[1] - self._shares[0]

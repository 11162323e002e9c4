"""Holds a bound on the foreground's mean slowdown by one knob: the share of the time that the background may have.

The slowdown is taken as proportional to the share, ``k x share``; ``k`` is fitted to the latest iterations, whatever
their shares, so a change of the share throws no evidence away. The share goes down only as far as the evidence
surely asks for, ``bound / (the least k that it allows)``: a clear violation is answered in one step, noise hardly at
all. It goes up in small steps, to ``bound / k`` at most.
"""

import math
from collections import deque
from statistics import fmean

from deeppool.scheduling.slowdown import clipped

LEAST = 0.01
"""A share is never less: at none, nobody would notice that the background has become harmless."""
KEPT = 64
"""Collocated iterations that the fit looks back."""
ENOUGH = 5
"""Iterations, alone and collocated together, before the share moves; two of each at least."""
CONFIDENCE = 2.0
"""Standard errors."""
PATIENCE = 8
"""Collocated iterations between two steps up."""
STEP_UP = 1.5


class Controller:
    """Turns the knob."""

    def __init__(self, bound: float) -> None:
        """Starts with the whole device; ``bound`` is 0.03 for 3 %."""
        self.share = 1.0
        self._bound = bound
        self._seen: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._waited = 0

    def forget(self) -> None:
        """Something else has changed what a share costs: the evidence so far is of no use."""
        self._seen.clear()

    def collocated(self, slowdown: float, alone: int, noise: float) -> None:
        """One more iteration at the present share.

        Args:
            slowdown: of that iteration, against the iterations alone.
            alone: how many of those there are.
            noise: standard deviation of one of them, as a part of their mean.
        """
        self._seen.append((self.share, slowdown))
        self._waited += 1
        if len(self._seen) < 2 or alone < 2 or len(self._seen) + alone < ENOUGH:
            return
        cost, error = self._fit(alone, noise)
        surely = cost - error
        if surely * self.share > self._bound:
            self.share = max(LEAST, self._bound / surely)
            self._waited = 0
        elif self.share < 1 and self._waited >= PATIENCE:
            allowed = self._bound / cost if cost > 0 else math.inf
            self.share = min(1.0, max(self.share, min(STEP_UP * self.share, allowed)))
            self._waited = 0

    def _fit(self, alone: int, noise: float) -> tuple[float, float]:
        """``k`` by least squares through the origin, and by how much it may be wrong."""
        shares = [share for share, _ in self._seen]
        squares = sum(share**2 for share in shares)
        cost = sum(share * slowdown for share, slowdown in self._seen) / squares
        residuals = clipped([slowdown - cost * share for share, slowdown in self._seen])
        cost += sum(share * residual for share, residual in zip(shares, residuals, strict=True)) / squares
        freedom = len(shares) + alone - 2
        middle = fmean(residuals)
        variance = sum((residual - middle) ** 2 for residual in residuals) + (alone - 1) * noise**2
        error = math.sqrt(variance / freedom * (1 / squares + (sum(shares) / squares) ** 2 / alone))
        # Student's t, near enough: 3.2 for 3 degrees of freedom, 2 for many.
        return cost, CONFIDENCE * (1 + 2 / freedom) * error

"""Holds a bound on the foreground's mean slowdown by one knob: the share of the time that the background may have.

The slowdown is taken as proportional to the share, ``k x share``; ``k`` is fitted to the latest iterations, whatever
their shares, so a change of the share throws no evidence away. A background is innocent until its ``k`` is surely
above the bound; then the share becomes nine tenths of ``bound / k`` at
once, and follows ``k`` in small steps.

Why not as others do: additive increase with multiplicative decrease (TGS, NSDI 2023) starves a background that costs
nothing, as noise halves its share again and again; bisection (Orion, EuroSys 2024) takes long to see that a
background has changed. ``benchmarks/controller`` compares the three.
"""

import math
from collections import deque
from collections.abc import Collection
from statistics import fmean

from deeppool.scheduling.slowdown import clipped

AIM = 0.9
"""Of the bound: what a background that is not innocent is allowed, as the fit errs both ways."""
LEAST = 0.01
"""A share is never less: at none, nobody would notice that the background has become harmless."""
KEPT = 64
"""Collocated iterations that the fit looks back."""
ENOUGH = 5
"""Iterations, alone and collocated together, before the share moves; two of each at least."""
GUILTY = 2.5
"""Standard errors by which ``k`` must be above the bound before an innocent background loses time."""
SURE = 2.0
"""Standard errors by which one that is not innocent must break the bound to lose time at once."""
LATEST = 4
"""Collocated iterations that show by themselves that a background has changed, and all before are dropped."""
CHANGED = 4.0
"""Standard errors by which those must break the bound."""
PATIENCE = 8
"""Collocated iterations between two small steps."""
HOPE = 32
"""Collocated iterations without a sure cost after which the share grows, whatever the fit says."""
STEP = 1.5


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
        if len(self._seen) > LATEST:
            latest = list(self._seen)[-LATEST:]
            cost, error = _fit(latest, alone, noise)
            if (cost - CHANGED * error) * self.share > self._bound:
                self._seen = deque(latest, maxlen=KEPT)
        cost, error = _fit(self._seen, alone, noise)
        allowed = AIM * self._bound / cost if cost > 0 else math.inf
        if (cost - (GUILTY if self.share == 1 else SURE) * error) * self.share > self._bound:
            self._turn(allowed)
        elif self.share < 1 and self._waited >= PATIENCE:
            self._follow(allowed, sure=cost > SURE * error)

    def _follow(self, allowed: float, *, sure: bool) -> None:
        """A small step; down only where a cost is sure, as noise says half of the time that there is one."""
        if sure:
            self._turn(min(max(allowed, self.share / STEP), STEP * self.share))
        elif allowed > self.share or self._waited >= HOPE:
            self._turn(STEP * self.share)

    def _turn(self, share: float) -> None:
        self.share = min(max(share, LEAST), 1.0)
        self._waited = 0


def _fit(seen: Collection[tuple[float, float]], alone: int, noise: float) -> tuple[float, float]:
    """``k`` by least squares through the origin of (share, slowdown), and its standard error."""
    shares = [share for share, _ in seen]
    squares = sum(share**2 for share in shares)
    cost = sum(share * slowdown for share, slowdown in seen) / squares
    residuals = clipped([slowdown - cost * share for share, slowdown in seen])
    cost += sum(share * residual for share, residual in zip(shares, residuals, strict=True)) / squares
    freedom = len(shares) + alone - 2
    middle = fmean(residuals)
    variance = sum((residual - middle) ** 2 for residual in residuals) + (alone - 1) * noise**2
    error = math.sqrt(variance / freedom * (1 / squares + (sum(shares) / squares) ** 2 / alone))
    # Twice this is Student's t, near enough: 3.3 for 3 degrees of freedom, 2 for many.
    return cost, (1 + 2 / freedom) * error

"""Bounds the foreground's mean slowdown by the background's share of the time.

The slowdown is modelled as proportional to the share, ``k x share``; ``k`` is fitted to the latest iterations, whatever
their shares, so a change of the share discards no evidence. A background is unrestricted until it significantly slows
the foreground, unless its priority equals the foreground's: then it is tried first, with a small share.

    suspected   iterations are significantly slower than those alone, by more than the bound
    tried       interleaved iterations with a minimal and a large share: if the machine itself has become slower,
                both are slow
    restricted  to nine tenths of ``bound / k``, which follows ``k`` in small steps; or unrestricted again

Alternatives: additive increase with multiplicative decrease (TGS, NSDI 2023) starves a background that costs nothing,
as noise halves its share again and again; bisection (Orion, EuroSys 2024) reacts slowly to a changed background; and
both attribute every slowdown of the foreground to the background. ``benchmarks/controller`` compares the three, also on
the noise of a shared machine, where iterations differ by 6 % and consecutive ones are correlated.
"""

import math
from collections import deque
from operator import mul
from statistics import fmean

from deeppool.scheduling.slowdown import clipped, spread, widening
from deeppool.scheduling.trial import Trial

SAFETY = 0.9
"""Part of the bound at which a restricted background is held, as the fit errs both ways."""
MIN_SHARE = 0.01
"""Least share: without any, a background that has become harmless would never be detected."""
CAUTIOUS = 0.1
"""Share of a background at the foreground's priority until it was tried."""
KEPT = 64
"""Collocated iterations that the fit uses."""
MIN_ITERATIONS = 5
"""Iterations, alone and collocated together, before the share moves; two of each at least."""
TRIAL_ERRORS = 2.5
"""Standard errors by which ``k`` must exceed the bound before an unrestricted background is tried."""
RETRIAL_ERRORS = 2.0
"""Standard errors by which a restricted background must exceed the bound to be tried again."""
SUDDEN_COUNT, SUDDEN_DEVIATIONS = 4, 2.0
"""Consecutive iterations, and the standard deviations by which each exceeds the bound, that also lead to a trial.

The larger deviation counts, of iterations alone or collocated, as a few may agree by chance.
"""
INEFFECTIVE, CONTRADICTIONS = 2.0, 2
"""Multiple of the bound, and count: a slowdown that a trial did not attribute to the background, but that vanished in
that many baselines without it."""
STEP_INTERVAL = 8
"""Collocated iterations between two small steps."""
STEP = 1.5
TRIAL_INTERVAL = 64
"""Collocated iterations after a trial in which only a gross slowdown leads to another."""
DOUBLINGS = 2
"""Limit of the doublings of that interval, one per consecutive trial that left the background unrestricted."""
GROSS = 5.0
"""Gross slowdown, in multiples of the bound."""
CONTRAST = 4.0
"""Large share in a trial of a restricted background, in multiples of its share, at most 1."""


class Controller:
    """Adjusts the share after each iteration."""

    def __init__(self, bound: float, *, cautious: bool = False) -> None:
        """Starts with a share of 1, or with a trial.

        Args:
            bound: 0.03 for 3 %.
            cautious: the background has the foreground's priority, so it is tried before it gets the device.
        """
        self._bound = bound
        self._share = CAUTIOUS if cautious else 1.0
        self._iterations: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._since_step = 0
        self._trial_wait = 0
        self._trial: Trial | None = Trial(MIN_SHARE, CAUTIOUS) if cautious else None
        self._earlier_blocks: list[float] = []
        """Cost estimates of the interleaved blocks of earlier trials without attribution."""
        self._unconfirmed_trials = 0
        """Consecutive trials without attribution."""
        self._contradictions, self._ineffective = 0, False
        self.drift = 0.0
        """Slowdown of the foreground that the last trial did not attribute to the background."""

    @property
    def share(self) -> float:
        """Share of the time for the next iteration."""
        return self._share if self._trial is None else self._trial.share

    @property
    def is_settled(self) -> bool:
        """Whether the background is unrestricted, not on trial, and the foreground's own drift within the bound."""
        return self._trial is None and not self.needs_baseline

    @property
    def needs_baseline(self) -> bool:
        """Whether iterations alone are worth their cost: the share is restricted, or the drift exceeds the bound.

        A trial does not need them.
        """
        return self._share < 1 or self.drift > self._bound

    def change_bound(self, bound: float) -> None:
        """Holds another bound; the cost model is kept, so a restricted share is scaled.

        An unrestricted background stays so until it is suspected of exceeding the new bound.
        """
        if self._share < 1 and not self._ineffective:
            self._set_share(self._share * bound / self._bound)
        self._bound = bound
        # These depend on the old bound.
        self._trial_wait, self._unconfirmed_trials, self._contradictions, self._ineffective = 0, 0, 0, False

    def forget(self) -> None:
        """Discards the evidence, because the cost of a share has changed."""
        self._iterations.clear()
        self._earlier_blocks.clear()
        self._trial = None

    def alone(self, shift: float) -> None:
        """Records a new baseline, ``shift`` slower than the one before: 0.03 is 3 %."""
        if self.drift and self._iterations:
            before = fmean([slowdown for _, slowdown in list(self._iterations)[-SUDDEN_COUNT:]]) + self.drift
            self._contradictions = (
                self._contradictions + 1 if before > INEFFECTIVE * self._bound and shift < before / 2 else 0
            )
            if self._contradictions == CONTRADICTIONS:
                # The background slows the foreground after all, whatever its share of the time.
                self._ineffective = True
                self._iterations.clear()
                self._set_share(MIN_SHARE)
        self.drift = 0.0

    def collocated(self, share: float, slowdown: float, alone: int, noise: float) -> None:
        """Records a collocated iteration.

        Args:
            share: share of that iteration; it may have changed since.
            slowdown: slowdown of that iteration, against the iterations alone.
            alone: number of those.
            noise: standard deviation of one of them, relative to their mean.
        """
        if self._trial is not None:
            self._trial.collocated(share, slowdown, self._scatter(noise))
            if self._trial.over(self._bound):
                self._decide(self._trial)
            return
        self._iterations.append((share, slowdown - self.drift))
        self._since_step += 1
        self._trial_wait -= 1
        if len(self._iterations) < 2 or alone < 2 or len(self._iterations) + alone < MIN_ITERATIONS:
            return
        cost, error = self._fit(alone, noise)
        suspected = self._suspected(cost, error, noise)
        if suspected is not None:
            self._trial = Trial(
                MIN_SHARE, min(1.0, CONTRAST * self._share), suspected=suspected, earlier=self._earlier_blocks
            )
        elif self._share < 1 and self._since_step >= STEP_INTERVAL:
            allowed = SAFETY * self._bound / cost if cost > 0 else math.inf
            # Less only if the cost is significant: noise alone suggests a cost half of the time.
            down = self._share / STEP if cost > RETRIAL_ERRORS * error else self._share
            self._set_share(min(max(allowed, down), STEP * self._share))

    def _suspected(self, cost: float, error: float, noise: float) -> float | None:
        """Returns the suspected slowdown, 0 for a restricted share, or None without suspicion."""
        if self._ineffective:
            return None
        tolerated = self._bound * (GROSS if self._trial_wait > 0 else 1)
        latest = [slowdown for _, slowdown in list(self._iterations)[-SUDDEN_COUNT:]]
        sure = TRIAL_ERRORS if self._share == 1 else RETRIAL_ERRORS
        if (cost - sure * error) * self._share > tolerated:
            return cost if self._share == 1 else 0.0
        if len(latest) == SUDDEN_COUNT and min(latest) > tolerated + SUDDEN_DEVIATIONS * self._scatter(noise):
            return fmean(latest) if self._share == 1 else 0.0
        return None

    def _scatter(self, noise: float) -> float:
        return max(noise, spread([slowdown for _, slowdown in self._iterations])) if self._iterations else noise

    def _decide(self, trial: Trial) -> None:
        """Replaces the evidence by the trial's result, and sets the share.

        A background that was unrestricted stays so unless the slowdown is attributed to it; the estimates of the trial
        are kept for the next one. One that was restricted is held at the likely cost.
        """
        attributed = trial.attributed_slowdown(self._bound)
        cost, free = (
            trial.cost if attributed is None else attributed,
            self._share == 1 and attributed is None,
        )
        self.drift = trial.level
        self._iterations.clear()
        self._iterations.extend((share, slowdown - self.drift) for share, slowdown in trial.iterations)
        self._trial = None
        self._earlier_blocks = trial.interleaved if free else []
        self._unconfirmed_trials = self._unconfirmed_trials + 1 if free else 0
        self._trial_wait = TRIAL_INTERVAL * 2 ** min(max(self._unconfirmed_trials - 1, 0), DOUBLINGS)
        self._set_share(1.0 if free or cost <= self._bound else SAFETY * self._bound / cost)

    def _set_share(self, share: float) -> None:
        self._share = min(max(share, MIN_SHARE), 1.0)
        self._ineffective = self._ineffective and self._share < 1
        self._since_step = 0

    def _fit(self, alone: int, noise: float) -> tuple[float, float]:
        """Returns ``k`` by least squares through the origin, and its standard error."""
        shares = [share for share, _ in self._iterations]
        squares = sum([share**2 for share in shares])
        cost = sum([share * slowdown for share, slowdown in self._iterations]) / squares
        residuals = clipped([slowdown - cost * share for share, slowdown in self._iterations])
        cost += sum(map(mul, shares, residuals)) / squares
        freedom = len(shares) + alone - 2
        middle = fmean(residuals)
        variance = sum([(residual - middle) ** 2 for residual in residuals]) + (alone - 1) * noise**2
        error = math.sqrt(variance / freedom * (1 / squares + (sum(shares) / squares) ** 2 / alone))
        return cost, widening(freedom) * error

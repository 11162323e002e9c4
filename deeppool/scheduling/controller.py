"""Holds a bound on the foreground's mean slowdown by one knob: the share of the time that the background may have.

The slowdown is taken as proportional to the share, ``k x share``; ``k`` is fitted to the latest iterations, whatever
their shares, so a change of the share throws no evidence away. A background is innocent until it surely costs
something, but for one as strong as the foreground: that is tried first, with little, and held by what is likely.

    suspected   iterations are surely slower than those alone, by more than the bound
    tried       with next to nothing and with all it may have, by turns: a machine that has become slower by itself is
                slow in both
    held        at nine tenths of ``bound / k``, which follows ``k`` in small steps; or free again

Why not as others do: additive increase with multiplicative decrease (TGS, NSDI 2023) starves a background that costs
nothing, as noise halves its share again and again; bisection (Orion, EuroSys 2024) takes long to see that a
background has changed; and both blame the background for whatever else slows the foreground down.
``benchmarks/controller`` compares the three, on noise of a machine with other guests, too: iterations differ by 6 %
there, and those in a row alike.
"""

import math
from collections import deque
from statistics import fmean

from deeppool.scheduling.slowdown import clipped, spread, widening
from deeppool.scheduling.trial import Trial

SAFETY = 0.9
"""Of the bound: what a background that is not innocent is allowed, as the fit errs both ways."""
MIN_SHARE = 0.01
"""A share is never less: at none, nobody would notice that the background has become harmless."""
CAUTIOUS = 0.1
"""Of the time: what a background may have that could do much harm, until it was tried."""
KEPT = 64
"""Collocated iterations that the fit looks back."""
MIN_ITERATIONS = 5
"""Iterations, alone and collocated together, before the share moves; two of each at least."""
TRIAL_ERRORS = 2.5
"""Standard errors by which ``k`` must be above the bound before a background that is free is tried."""
RETRIAL_ERRORS = 2.0
"""Standard errors by which one that is held must break the bound to be tried again."""
SUDDEN_COUNT, SUDDEN_DEVIATIONS = 4, 2.0
"""Or so many iterations in a row, each of them by so many standard deviations above the bound; of iterations alone or
beside the background, whichever scatter more, as a few may agree by chance."""
INEFFECTIVE, CONTRADICTIONS = 2.0, 2
"""Times the bound: a slowdown that was found to be nobody's fault, and is gone without the background, twice."""
STEP_INTERVAL = 8
"""Collocated iterations between two small steps."""
STEP = 1.5
TRIAL_INTERVAL = 64
"""Collocated iterations after a trial in which only a gross suspicion leads to another."""
DOUBLINGS = 2
"""After each trial in a row that left the background free they are twice as many, so many times at most."""
GROSS = 5.0
"""Times the bound."""
CONTRAST = 4.0
"""Times its share, at most all: what a background that is held gets in its turns of a trial."""


class Controller:
    """Turns the knob."""

    def __init__(self, bound: float, *, cautious: bool = False) -> None:
        """Starts with the whole device, or warily.

        Args:
            bound: 0.03 for 3 %.
            cautious: the background is as strong as the foreground, so it is tried before it gets the device.
        """
        self._bound = bound
        self._share = CAUTIOUS if cautious else 1.0
        self._iterations: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._since_step = 0
        self._trial_wait = 0
        self._trial: Trial | None = Trial(MIN_SHARE, CAUTIOUS) if cautious else None
        self._earlier_blocks: list[float] = []
        """What the turns of earlier trials have said, as long as they have proved nothing."""
        self._unconfirmed_trials = 0
        """Such trials in a row."""
        self._contradictions, self._ineffective = 0, False
        self.drift = 0.0
        """By how much the foreground itself, so the last trial, is slower than when it was last alone."""

    @property
    def share(self) -> float:
        """Of the time, for the next iteration."""
        return self._share if self._trial is None else self._trial.share

    @property
    def is_settled(self) -> bool:
        """Whether the background has all time, none of it on trial, and the foreground by itself is not too slow."""
        return self._trial is None and not self.needs_baseline

    @property
    def needs_baseline(self) -> bool:
        """Whether iterations alone are worth what they cost: a share is held, or the foreground too slow by itself.

        A trial does without them.
        """
        return self._share < 1 or self.drift > self._bound

    def change_bound(self, bound: float) -> None:
        """Holds another bound: what is known of the cost stays, so a share that holds the old one is scaled.

        A background that is free is free until it is suspected of breaking the new bound.
        """
        if self._share < 1 and not self._ineffective:
            self._set_share(self._share * bound / self._bound)
        self._bound = bound
        # What was bearable, or hopeless, was so by the old bound.
        self._trial_wait, self._unconfirmed_trials, self._contradictions, self._ineffective = 0, 0, 0, False

    def forget(self) -> None:
        """Something else has changed what a share costs: the evidence so far is of no use."""
        self._iterations.clear()
        self._earlier_blocks.clear()
        self._trial = None

    def alone(self, shift: float) -> None:
        """There are new iterations alone to compare with, ``shift`` slower than those before: 0.03 is 3 %."""
        if self.drift and self._iterations:
            before = fmean([slowdown for _, slowdown in list(self._iterations)[-SUDDEN_COUNT:]]) + self.drift
            self._contradictions = (
                self._contradictions + 1 if before > INEFFECTIVE * self._bound and shift < before / 2 else 0
            )
            if self._contradictions == CONTRADICTIONS:
                # It is the background after all, and its share of the time makes no difference.
                self._ineffective = True
                self._iterations.clear()
                self._set_share(MIN_SHARE)
        self.drift = 0.0

    def collocated(self, share: float, slowdown: float, alone: int, noise: float) -> None:
        """One more iteration.

        Args:
            share: that it had; since then it may have been turned.
            slowdown: of that iteration, against the iterations alone.
            alone: how many of those there are.
            noise: standard deviation of one of them, as a part of their mean.
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
            # Less only for a background that surely costs something: noise says half of the time that it does.
            down = self._share / STEP if cost > RETRIAL_ERRORS * error else self._share
            self._set_share(min(max(allowed, down), STEP * self._share))

    def _suspected(self, cost: float, error: float, noise: float) -> float | None:
        """Of which slowdown; 0 where a share is held, whatever it may cost; None: of nothing."""
        if self._ineffective:
            return None
        bearable = self._bound * (GROSS if self._trial_wait > 0 else 1)
        latest = [slowdown for _, slowdown in list(self._iterations)[-SUDDEN_COUNT:]]
        sure = TRIAL_ERRORS if self._share == 1 else RETRIAL_ERRORS
        if (cost - sure * error) * self._share > bearable:
            return cost if self._share == 1 else 0.0
        if len(latest) == SUDDEN_COUNT and min(latest) > bearable + SUDDEN_DEVIATIONS * self._scatter(noise):
            return fmean(latest) if self._share == 1 else 0.0
        return None

    def _scatter(self, noise: float) -> float:
        return max(noise, spread(slowdown for _, slowdown in self._iterations)) if self._iterations else noise

    def _decide(self, trial: Trial) -> None:
        """What the trial has found is all that counts from now on.

        A background that had all it wanted gets it back unless it is guilty, and what was said in the trial is
        remembered for the next one. One that was held is held by what is likely.
        """
        attributed_slowdown = trial.attributed_slowdown(self._bound)
        cost, free = (
            trial.cost if attributed_slowdown is None else attributed_slowdown,
            self._share == 1 and attributed_slowdown is None,
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
        """``k`` by least squares through the origin, and its standard error."""
        shares = [share for share, _ in self._iterations]
        squares = sum(share**2 for share in shares)
        cost = sum(share * slowdown for share, slowdown in self._iterations) / squares
        residuals = clipped([slowdown - cost * share for share, slowdown in self._iterations])
        cost += sum(share * residual for share, residual in zip(shares, residuals, strict=True)) / squares
        freedom = len(shares) + alone - 2
        middle = fmean(residuals)
        variance = sum((residual - middle) ** 2 for residual in residuals) + (alone - 1) * noise**2
        error = math.sqrt(variance / freedom * (1 / squares + (sum(shares) / squares) ** 2 / alone))
        return cost, widening(freedom) * error

"""How much slower the foreground is beside a background than alone, and how well that is known."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean, median

NORMAL_MAD = 1.4826
"""Standard deviations in a median absolute deviation, of normal noise."""
OUTLIER = 4.0
"""Standard deviations from the median beyond which a time says little: a checkpoint, another user of the machine."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A slowdown: 0.03 is 3 %."""

    mean: float
    error: float
    """Its standard error."""
    alone: int
    """Iterations alone that it rests on."""
    collocated: int
    """Iterations beside a background that it rests on."""


def spread(times: Iterable[float]) -> float:
    """A standard deviation that a few outliers do not move."""
    known = list(times)
    middle = median(known)
    return NORMAL_MAD * median(abs(time - middle) for time in known)


def clipped(times: Iterable[float]) -> list[float]:
    """The times, those far out moved to the edge of what is plausible."""
    known = list(times)
    if len(known) < 3:
        return known
    middle, reach = median(known), OUTLIER * spread(known)
    return [min(max(time, middle - reach), middle + reach) for time in known] if reach else known


def widening(freedom: float) -> float:
    """By how much two or three standard errors become more where a spread is known from few times: Student's t.

    To a few percent of it, from three degrees of freedom on.
    """
    return 1 + 2 / freedom + 4 / freedom**2


class Baseline:
    """What an iteration takes alone: the last ones, so that it follows a machine whose speed drifts."""

    KEPT = 9
    SHIFTED = 2
    """So many last ones that all differ clearly from those before are a change, and those before are dropped."""
    LEAST_NOISE = 0.01
    """Of a time: what differs by less is no change."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._times: deque[float] = deque(maxlen=self.KEPT)
        self.mean = 0.0
        """Seconds."""
        self.noise = 0.0
        """Standard deviation of one of them, as a part of the mean."""

    def __len__(self) -> int:
        return len(self._times)

    def add(self, seconds: float) -> None:
        """One more iteration alone."""
        self._times.append(seconds)
        before, last = list(self._times)[: -self.SHIFTED], list(self._times)[-self.SHIFTED :]
        if len(before) > self.SHIFTED:
            middle = median(before)
            reach = OUTLIER * max(spread(before), self.LEAST_NOISE * middle)
            if min(last) > middle + reach or max(last) < middle - reach:
                self._times = deque(last, maxlen=self.KEPT)
        self.mean = fmean(clipped(self._times))
        self.noise = spread(self._times) / self.mean


@dataclass(slots=True)
class _Sums:
    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count, self.total, self.squares = self.count + 1, self.total + value, self.squares + value**2

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def variance(self) -> float:
        """Of one of them, as the values show it."""
        return max(0.0, self.squares - self.count * self.mean**2) / (self.count - 1)


class Slowdown:
    """Adds up over a run: each collocated iteration against the iterations alone that were last before it."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._alone, self._fresh = 0, 0
        """All, and those since the block under way began."""
        self._noise = 0.0
        self._times = _Sums()
        self._block, self._blocks = _Sums(), _Sums()
        """Iterations against much the same ones alone are one witness: the one under way, and the means of others."""

    def alone(self, baseline: Baseline) -> None:
        """One more iteration alone."""
        self._alone, self._fresh = self._alone + 1, self._fresh + 1
        self._noise = baseline.noise
        if self._fresh >= Baseline.KEPT and self._block.count:
            self._blocks.add(self._block.mean)
            self._block, self._fresh = _Sums(), 0

    def collocated(self, slowdown: float) -> None:
        """One more iteration beside a background."""
        self._times.add(slowdown)
        self._block.add(slowdown)

    def without_collocated(self) -> "Slowdown":
        """Another one that knows the same iterations alone, and none beside a background."""
        fresh = Slowdown()
        fresh._alone, fresh._noise = self._alone, self._noise
        return fresh

    @property
    def estimate(self) -> Estimate | None:
        """None until two iterations of each kind are known."""
        if self._alone < 2 or self._times.count < 2:
            return None
        return Estimate(self._times.mean, math.sqrt(self._variance()), self._alone, self._times.count)

    def _variance(self) -> float:
        """Of the mean. Noise of a shared machine lasts for iterations, so blocks show it, where there are three."""
        blocks = replace(self._blocks)
        if self._block.count >= Baseline.KEPT:
            blocks.add(self._block.mean)
        if blocks.count > 2:
            return blocks.variance / blocks.count
        return self._times.variance / self._times.count + self._noise**2 / min(self._alone, Baseline.KEPT)

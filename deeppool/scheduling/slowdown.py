"""Estimates how much slower the foreground is beside a background than alone."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from statistics import fmean, median

NORMAL_MAD = 1.4826
"""Standard deviations per median absolute deviation of normal noise."""
OUTLIER = 4.0
"""Standard deviations from the median beyond which a time is an outlier, as of a checkpoint or another user."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate of a slowdown: 0.03 is 3 %."""

    mean: float
    error: float
    """Standard error of the mean."""
    alone: int
    """Iterations alone in the estimate."""
    collocated: int
    """Collocated iterations in the estimate."""


def median_and_spread(times: Sequence[float]) -> tuple[float, float]:
    """Returns the median, and a standard deviation that is robust to outliers."""
    middle = median(times)
    return middle, NORMAL_MAD * median([abs(time - middle) for time in times])


def spread(times: Iterable[float]) -> float:
    """Returns a standard deviation that is robust to outliers."""
    return median_and_spread(list(times))[1]


def clipped(times: Iterable[float]) -> list[float]:
    """Returns the times with outliers moved to the plausible range."""
    known = list(times)
    return known if len(known) < 3 else _within(known, *median_and_spread(known))


def _within(times: list[float], middle: float, deviation: float) -> list[float]:
    reach = OUTLIER * deviation
    if not reach:
        return times
    low, high = middle - reach, middle + reach
    return [low if time < low else high if time > high else time for time in times]


def widening(freedom: float) -> float:
    """Returns the factor of Student's t by which two or three standard errors widen with few degrees of freedom.

    Accurate to a few percent from three degrees of freedom on.
    """
    return 1 + 2 / freedom + 4 / freedom**2


class Baseline:
    """Time of an iteration alone: of the latest ones, so that it follows a machine whose speed drifts."""

    KEPT = 9
    SHIFTED = 2
    """Number of latest times that, if they differ clearly from the earlier ones, replace them."""
    LEAST_NOISE = 0.01
    """Relative noise that is assumed at least."""

    def __init__(self) -> None:
        """Starts empty."""
        self._times: deque[float] = deque(maxlen=self.KEPT)
        self.mean = 0.0
        """Seconds."""
        self.noise = 0.0
        """Standard deviation of one time, relative to the mean."""

    def __len__(self) -> int:
        return len(self._times)

    def add(self, seconds: float) -> None:
        """Adds an iteration alone."""
        self._times.append(seconds)
        times = list(self._times)
        before, last = times[: -self.SHIFTED], times[-self.SHIFTED :]
        if len(before) > self.SHIFTED:
            middle, deviation = median_and_spread(before)
            reach = OUTLIER * max(deviation, self.LEAST_NOISE * middle)
            if min(last) > middle + reach or max(last) < middle - reach:
                self._times, times = deque(last, maxlen=self.KEPT), last
        middle, deviation = median_and_spread(times)
        self.mean = fmean(times if len(times) < 3 else _within(times, middle, deviation))
        self.noise = deviation / self.mean


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
        """Sample variance of one value."""
        return max(0.0, self.squares - self.count * self.mean**2) / (self.count - 1)


class Slowdown:
    """Mean over a run of each collocated iteration's slowdown against the iterations alone before it."""

    def __init__(self) -> None:
        """Starts empty."""
        self._alone, self._fresh = 0, 0
        """Iterations alone: all, and those since the current block began."""
        self._noise = 0.0
        self._times = _Sums()
        self._block, self._blocks = _Sums(), _Sums()
        """The current block, and the means of earlier ones: slowdowns against the same baseline are correlated."""

    def alone(self, baseline: Baseline) -> None:
        """Adds an iteration alone."""
        self._alone, self._fresh = self._alone + 1, self._fresh + 1
        self._noise = baseline.noise
        if self._fresh >= Baseline.KEPT and self._block.count:
            self._blocks.add(self._block.mean)
            self._block, self._fresh = _Sums(), 0

    def collocated(self, slowdown: float) -> None:
        """Adds a collocated iteration."""
        self._times.add(slowdown)
        self._block.add(slowdown)

    def without_collocated(self) -> "Slowdown":
        """Returns a copy with the same iterations alone and no collocated ones."""
        fresh = Slowdown()
        fresh._alone, fresh._noise = self._alone, self._noise
        return fresh

    @property
    def estimate(self) -> Estimate | None:
        """The slowdown; None until two iterations of each kind are known."""
        if self._alone < 2 or self._times.count < 2:
            return None
        return Estimate(self._times.mean, math.sqrt(self._variance()), self._alone, self._times.count)

    def _variance(self) -> float:
        """Returns the variance of the mean, from blocks if there are three, as noise may be autocorrelated."""
        blocks = copy(self._blocks)
        if self._block.count >= Baseline.KEPT:
            blocks.add(self._block.mean)
        if blocks.count > 2:
            return blocks.variance / blocks.count
        return self._times.variance / self._times.count + self._noise**2 / min(self._alone, Baseline.KEPT)

"""How much slower the foreground is beside a background than alone, and how well that is known."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
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


class Slowdown:
    """Adds up over a run: each collocated iteration against the iterations alone that were last before it."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._alone = 0
        self._sums = (0, 0.0, 0.0)
        self._noise = 0.0

    def alone(self, baseline: Baseline) -> None:
        """One more iteration alone."""
        self._alone += 1
        self._noise = baseline.noise

    def collocated(self, slowdown: float) -> None:
        """One more iteration beside a background."""
        count, total, squares = self._sums
        self._sums = (count + 1, total + slowdown, squares + slowdown**2)

    def without_collocated(self) -> "Slowdown":
        """Another one that knows the same iterations alone, and none beside a background."""
        fresh = Slowdown()
        fresh._alone, fresh._noise = self._alone, self._noise
        return fresh

    @property
    def estimate(self) -> Estimate | None:
        """None until two iterations of each kind are known."""
        count, total, squares = self._sums
        if self._alone < 2 or count < 2:
            return None
        mean = total / count
        variance = max(0.0, squares - count * mean**2) / (count - 1)
        error = math.sqrt(variance / count + self._noise**2 / self._alone)
        return Estimate(mean, error, self._alone, count)

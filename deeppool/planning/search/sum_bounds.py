"""Bounds of the sums that a label can be part of: labels of which all sums are beaten by known ones are left out.

At each price of a GPU-second the shortest paths from the first step and to the last one say what

    L(price) = seconds + price x GPU-seconds

the sums through a label come to at least. Known sums, from the fastest to the one of the fewest GPU-seconds, beat
every sum above their stairs; a sum is above the stairs if it is above each corner that they turn inwards,

    seconds |--x         corner x: the seconds of a known sum, and the GPU-seconds of the faster one before it
            |  |--x
            |     |---

and it is above a corner if at some price its L is above the corner's.
"""

from collections.abc import Sequence

import numpy as np

from deeppool.costs.table import Floats
from deeppool.planning.search.label_sums import StepLabels
from deeppool.planning.search.pareto import Integers

ROUNDING = 1e-9


class SumBounds:
    """Least L of the sums through each label, and the largest that a sum of use can have."""

    def __init__(self, prices: Floats, heights: Sequence[Floats]) -> None:
        """Finds the shortest paths.

        Args:
            prices: ascending from 0, and an infinite one for GPU-seconds alone.
            heights: per step (price, before, after) least L.
        """
        self.time_weights, self.work_weights = np.isfinite(prices) * 1.0, np.where(np.isfinite(prices), prices, 1.0)
        self.before, self.behind = [heights[0][:, :, 0] * 0], [heights[-1][:, 0, :] * 0]
        for height in heights:
            self.before.append((self.before[-1][:, :, None] + height).min(axis=1))
        for height in reversed(heights):
            self.behind.insert(0, (height + self.behind[0][:, None, :]).min(axis=2))
        self.most: Floats = np.full(len(prices), -np.inf)

    @property
    def fastest(self) -> float:
        """Seconds that no sum can beat."""
        return float(self.before[-1][0].min())

    def learn(self, time: Floats, work: Floats) -> None:
        """Takes sums that are known; seconds ascend, GPU-seconds descend."""
        least = self.before[-1].min(axis=1)
        self.most[0], self.most[-1] = time[0], work[-1]
        for seconds, spent in zip(time[1:], work[:-1], strict=True):
            price = int((least - self.work_weights * spent)[:-1].argmax())
            self.most[price] = max(self.most[price], seconds + self.work_weights[price] * spent)

    def useful(self, position: int, labels: StepLabels) -> Integers:
        """Returns the labels of a step that may be part of a sum which no known one beats."""
        least = self._length(labels.values)
        least += self.before[position][:, labels.before] + self.behind[position + 1][:, labels.after]
        return self._below(least)

    def promising(self, position: int, after: Integers, sums: Floats) -> Integers:
        """Returns the sums of the steps so far that may become sums which no known one beats."""
        return self._below(self._length(sums) + self.behind[position + 1][:, after])

    def _length(self, values: Floats) -> Floats:
        length: Floats = self.time_weights[:, None] * values[0] + self.work_weights[:, None] * values[1]
        return length

    def _below(self, least: Floats) -> Integers:
        return np.nonzero((least < self.most[:, None] * (1 + ROUNDING)).any(axis=0))[0]

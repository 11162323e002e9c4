r"""What no plan takes less than, in seconds + price x GPU-seconds, at many prices: a Lagrangian relaxation.

The shortest path through the steps of a model, with what no way through a step takes less than in

    L(price) = seconds + price x GPU-seconds

as its length, is what no plan takes less than. So each price is a line below which there is no plan, and all of them
are a polygon, as those of single steps are (see ``step_labels``):

    seconds
      |  \ .            . a plan
      |   \    .        \_ lines of three prices
      |    \_ .
      |       \___.___
      +------------------ GPU-seconds

The least L of a step is concave in the price. Between two prices that were searched it is no less than on the straight
line between them, so that many prices have a bound without a search of their own.
"""

from collections.abc import Sequence

import numpy as np

from deeppool.costs.table import Floats
from deeppool.planning.search.pareto import Integers, efficient_rows

RATIO = 1.001
"""Ratio of the seconds of two bounds."""
ROUNDING = 1e-9
"""What rounding may add to lengths and GPU-seconds, as a part of them; much where it is divided by a small price."""

Bounds = tuple[Floats, Floats]
"""Seconds, ascending, and GPU-seconds, descending, of which each plan takes no less than one pair."""


class PriceGrid:
    """Prices of a GPU-second with more prices between them."""

    def __init__(self, searched: Floats, intervals: int) -> None:
        """Divides each interval of prices.

        Args:
            searched: prices of the searches: 0, and others, ascending; the last one is infinite.
            intervals: intervals to divide each into.
        """
        finite, shares = searched[:-1], np.arange(1, intervals) / intervals
        inner = finite[1:-1, None] * (finite[2:] / finite[1:-1])[:, None] ** shares
        every = np.sort(np.concatenate([finite, finite[1] * shares, inner.ravel()]))
        self.prices: Floats = np.append(every, searched[-1])
        """Ascending from 0; the last one is infinite."""
        self._above: Integers = np.searchsorted(finite, every)
        self._below: Integers = np.maximum(self._above - 1, 0)
        width = finite[self._above] - finite[self._below]
        self._part = np.divide(every - finite[self._below], width, out=np.ones(len(width)), where=width > 0)

    def between(self, heights: Floats) -> Floats:
        """Returns bounds of L at all prices from those of the searched ones, (searched, before, after) each."""
        part = self._part[:, None, None]
        # What the limit forbids at one price it forbids at all.
        lower = np.where(part < 1, heights[self._below], 0.0) * (1 - part)
        return np.concatenate([lower + heights[self._above] * part, heights[-1:]])


def least_path_lengths(heights: Sequence[Floats]) -> Floats:
    """Returns (price,) lengths of the shortest paths.

    Args:
        heights: per step (price, before, after) lengths; the first step has one count before it.
    """
    least = np.zeros((len(heights[0]), 1))
    for height in heights:
        least = (least[:, :, None] + height).min(axis=1)
    found: Floats = least.min(axis=1)
    return found


def path_bounds(prices: Floats, lengths: Floats) -> Bounds:
    """Returns bounds of all plans.

    Args:
        prices: ascending from 0; the last one is infinite.
        lengths: (price,) L that no plan falls below; at the last one GPU-seconds.
    """
    lengths = lengths * (1 - ROUNDING)
    fastest, least_work = float(lengths[0]), float(lengths[-1])
    # Within these seconds the least GPU-seconds are reached.
    slowest = max(fastest, float((lengths[1:-1] - prices[1:-1] * least_work).max()))
    number = 2 + int(np.log(slowest / fastest) / np.log(RATIO))
    until = np.geomspace(fastest, slowest, number)
    works = np.full(number, least_work)
    for price, length in zip(prices[1:-1].tolist(), lengths[1:-1].tolist(), strict=True):
        works = np.maximum(works, (length - until) / price)
    # A plan between two of these seconds takes more than the first, and no fewer GPU-seconds than within the second.
    return _efficient(np.append(fastest, until[:-1]), works)


def larger(first: Bounds, second: Bounds) -> Bounds:
    """Returns the bounds that follow from both: at any GPU-seconds the larger ones in seconds."""
    works = np.concatenate([first[1], second[1]])
    times = [np.append(time, np.inf)[np.searchsorted(-work, -works)] for time, work in (first, second)]
    larger = np.maximum(*times)
    return _efficient(larger[np.isfinite(larger)], works[np.isfinite(larger)])


def _efficient(times: Floats, works: Floats) -> Bounds:
    rows = efficient_rows(None, times, works)
    return times[rows], works[rows]

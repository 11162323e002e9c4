"""95 % confidence intervals of estimates over rounds.

Successive iterations are autocorrelated on a shared machine, and so are short rounds: their number overstates the
precision of a mean. The interval comes from how much the estimate depends on each block of rounds, by the block
jackknife (Tukey, 1958); that of ways measured by turns, from their ratios in each repetition. It does not cover the
variation between two starts of the same run.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import fmean, median, stdev

from deeppool.errors import InvalidValueError

TAIL = 0.025
"""Probability of either side beyond an interval of 95 %."""
MOST_REPETITIONS = 100_000


def confidence_half_width(without: Callable[[range], float | None], rounds: int, together: int = 1) -> float | None:
    """Returns half the width of an estimate's 95 % confidence interval.

    Args:
        without: estimate that leaves out a block of rounds; None: there is none.
        rounds: number of rounds of the estimate.
        together: rounds of a block, or a few more; rounds that are further apart count as independent.

    Returns:
        Half width in the estimate's unit; None where there is only one block.
    """
    blocks = rounds // together
    if blocks < 2:
        return None
    ends = [rounds * number // blocks for number in range(blocks + 1)]
    found = [without(range(start, end)) for start, end in itertools.pairwise(ends)]
    known = [estimate for estimate in found if estimate is not None]
    if len(known) < blocks:
        return None
    middle = fmean(known)
    error = math.sqrt((blocks - 1) / blocks * sum((estimate - middle) ** 2 for estimate in known))
    return error * student_quantile(blocks - 1)


@cache
def student_quantile(freedom: int, tail: float = TAIL) -> float:
    """Returns what Student's t exceeds with a probability, by the finite series of Abramowitz and Stegun (26.7.3).

    Args:
        freedom: degrees of freedom; beyond 1000 the quantile changes by less than 0.1 %.
        tail: the probability, below a half.
    """
    freedom = min(freedom, 1000)
    odd, low, high = freedom % 2, 0.0, 1e6
    for _ in range(100):
        quantile = (low + high) / 2
        angle = math.atan(quantile / math.sqrt(freedom))
        term, total = math.cos(angle) if odd else 1.0, 0.0
        for number in range(2 + odd, freedom + 1, 2):
            total += term
            term *= math.cos(angle) ** 2 * (number - 1) / number
        inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
        low, high = (quantile, high) if inside < 1 - 2 * tail else (low, quantile)
    return high


def check_repetitions(repetitions: int) -> None:
    """Raises InvalidValueError unless something was measured, and not more often than anybody would."""
    if not 1 <= repetitions <= MOST_REPETITIONS:
        raise InvalidValueError(f"repetitions must be within 1…{MOST_REPETITIONS}, got {repetitions}")


def check_rounds(rounds: Mapping[str, Sequence[float]], repetitions: int) -> None:
    """Raises InvalidValueError unless every way has rounds of positive times, as many from each repetition."""
    check_repetitions(repetitions)
    for name, seconds in rounds.items():
        if len(seconds) < repetitions or len(seconds) % repetitions or min(seconds) <= 0:
            raise InvalidValueError(
                f"'{name}' needs as many rounds of positive times from each of {repetitions} repetitions, got "
                f"{len(seconds)} rounds, the shortest of {min(seconds, default=0.0):g} s"
            )


Interval = tuple[float, float | None, float | None]
"""A ratio, and the ends of its confidence interval; None: one repetition has none."""


def typical_time(times: Sequence[float], repetitions: int) -> float:
    """Returns the geometric mean of the medians of all repetitions, of which ratios are made."""
    return math.exp(fmean(_logarithms(times, repetitions)))


def _logarithms(times: Sequence[float], repetitions: int) -> list[float]:
    size = len(times) // repetitions
    return [math.log(median(times[start : start + size])) for start in range(0, len(times), size)]


def paired_ratio(
    over: Sequence[float], ours: Sequence[float], repetitions: int, below: float = TAIL, above: float = TAIL
) -> Interval:
    """Returns the ratio of the times of two ways, with its confidence interval by Student's t.

    The ratio is the geometric mean over repetitions of the ratio of both medians in each, so what changes between
    repetitions cancels. The interval is that of the mean of the logarithms.

    Args:
        over: times, as many from each repetition.
        ours: times that they are divided by, measured by turns with the others.
        repetitions: number of repetitions; the interval needs two.
        below: probability that the true ratio is below the interval.
        above: probability that it is above.
    """
    both = zip(_logarithms(over, repetitions), _logarithms(ours, repetitions), strict=True)
    found = [more - less for more, less in both]
    middle = fmean(found)
    if repetitions < 2:
        return math.exp(middle), None, None
    error = stdev(found) / math.sqrt(repetitions)
    # Numbers stay finite, however far apart the times are.
    low, high = (min(error * student_quantile(repetitions - 1, tail), 100.0) for tail in (below, above))
    return math.exp(middle), math.exp(middle - low), math.exp(middle + high)


def format_with_interval(ratio: float, low: float | None, high: float | None) -> str:
    """Formats a ratio and its interval: ``1.21 (1.15 … 1.29)``."""
    if low is None or high is None:
        return f"{ratio:.2f}"
    return f"{ratio:.2f} ({low:.2f} … {f'{high:.2f}' if high < 100 else 'over 100'})"


def format_interval(half_width: float | None) -> str:
    """Formats a half width for use after a percentage: `` ± 1.3``, or empty if unknown."""
    return "" if half_width is None else f" ± {100 * half_width:.1f}"

"""95 % confidence interval of an estimate over rounds, by the block jackknife (Tukey, 1958).

Successive iterations are autocorrelated on a shared machine, and so are short rounds: their number overstates the
precision of a mean. The interval comes from how much the estimate depends on each block of rounds. It does not cover
the variation between two starts of the same run.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from deeppool.errors import InvalidValueError

_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Half width of a 95 % interval in standard errors: Student's t, from 1 degree of freedom."""
_NORMAL = 2.0
"""Half width of a 95 % interval in standard errors for more degrees of freedom, accurate to 6 %."""
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
    freedom = blocks - 1
    return error * (_STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL)


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


def median_ratio(over: Sequence[float], ours: Sequence[float], repetitions: int) -> tuple[float, float | None]:
    """Returns the ratio of two medians, and half the width of its 95 % confidence interval.

    Args:
        over: times, as many from each repetition.
        ours: times that they are divided by, measured by turns with the others.
        repetitions: number of repetitions; the interval needs two.
    """

    def kept(values: Sequence[float], without: range) -> float:
        size = max(1, len(values) // repetitions)
        return median(value for place, value in enumerate(values) if place // size not in without)

    def ratio(without: range) -> float:
        return kept(over, without) / kept(ours, without)

    return ratio(range(0)), confidence_half_width(ratio, repetitions)


def format_ratio(ratio: float, half_width: float | None) -> str:
    """Formats a ratio and its half width: ``1.21 ± 0.06``."""
    return f"{ratio:.2f}{'' if half_width is None else f' ± {half_width:.2f}'}"


def format_interval(half_width: float | None) -> str:
    """Formats a half width for use after a percentage: `` ± 1.3``, or empty if unknown."""
    return "" if half_width is None else f" ± {100 * half_width:.1f}"

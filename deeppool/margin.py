"""How sure an estimate over rounds is: half the width of its 95 % interval, by the jackknife (Tukey, 1958).

Iterations that follow each other are alike on a shared machine, so their number says little about how sure their mean
is. Rounds are further apart: how much an estimate depends on each of them tells. What differs between two starts of the
same run is in no margin.
"""

import math
from collections.abc import Callable
from statistics import fmean

_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Standard errors to either side that hold the true value in 19 of 20 cases: Student's t, from 1 degree of freedom."""
_NORMAL = 2.0
"""The same for more, within 6 %."""


def margin(without: Callable[[int], float | None], rounds: int) -> float | None:
    """Half the width of an estimate's 95 % interval.

    Args:
        without: the estimate that leaves out one round; None: there is none.
        rounds: that it was made of.

    Returns:
        In the estimate's unit; None where it stands on one round alone.
    """
    if rounds < 2:
        return None
    found = [without(left_out) for left_out in range(rounds)]
    known = [estimate for estimate in found if estimate is not None]
    if len(known) < rounds:
        return None
    middle = fmean(known)
    error = math.sqrt((rounds - 1) / rounds * sum((estimate - middle) ** 2 for estimate in known))
    freedom = rounds - 1
    return error * (_STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL)


def format_margin(margin: float | None) -> str:
    """What follows a percentage: `` ± 1.3``; nothing where it is unknown."""
    return "" if margin is None else f" ± {100 * margin:.1f}"

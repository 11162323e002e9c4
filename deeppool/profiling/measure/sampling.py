"""Repetition: how many times are enough, and what they say together.

    warm-up │ layered  whole  layered  whole … │ until both are steady, or took long enough

Iterations with stamps between the layers alternate with iterations without, so that whatever else the machine
does meets both alike. What counts is the mean over the faster half of the iterations: noise only adds, and the
mean of each layer over the same iterations adds up to their mean, as medians of layers would not.
"""

import statistics
from collections.abc import Sequence

STEADY = 0.03
"""Enough is when the spread of both kinds of iteration is at most this."""
MINIMUM_RUNS = 5
MAXIMUM_RUNS = 50
MINIMUM_SECONDS = 0.5
MAXIMUM_SECONDS = 6.0
"""Per batch size unless told; reached, two layered iterations and a whole one are enough."""
LONG_ITERATION = 2.0
"""Seconds of an iteration that needs no warm-up of its own: what a first run costs extra is small beside it, and
of two runs the lower counts."""


def faster_half(times: Sequence[float]) -> list[int]:
    """Which of the iterations count: the faster half of them, rounded up."""
    order = sorted(range(len(times)), key=times.__getitem__)
    return sorted(order[: (len(times) + 1) // 2])


def typical(times: Sequence[float]) -> float:
    """Mean of the faster half."""
    return statistics.fmean(times[index] for index in faster_half(times))


def spread(times: Sequence[float]) -> float:
    """Half the interquartile range over the median; half the difference where there are two; 0 where there is one."""
    middle = statistics.median(times)
    if len(times) < 2 or not middle:
        return 0.0
    lower, upper = min(times), max(times)
    if len(times) > 2:
        lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
    return (upper - lower) / 2 / middle


def is_sufficient(layered: Sequence[float], whole: Sequence[float], most: float = MAXIMUM_SECONDS) -> bool:
    """Whether iterations that took these seconds need no more company; ``most`` are to be spent on them."""
    if len(layered) < 2 or not whole:
        return False
    spent = sum(layered) + sum(whole)
    runs = min(len(layered), len(whole))
    if spent >= most or runs >= MAXIMUM_RUNS:
        return True
    return runs >= MINIMUM_RUNS and spent >= MINIMUM_SECONDS and max(spread(layered), spread(whole)) <= STEADY


def progress(layered: Sequence[float], whole: Sequence[float], most: float = MAXIMUM_SECONDS) -> float:
    """About what share of the iterations is done: enough is known only when it is reached."""
    by_time = (sum(layered) + sum(whole)) / most
    by_runs = min(len(layered), len(whole)) / MINIMUM_RUNS
    return min(max(by_time, by_runs), 0.95)

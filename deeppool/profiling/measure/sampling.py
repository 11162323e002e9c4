"""Sampling of iterations: when to stop, and their typical time and spread.

    warm-up │ layered  whole  layered  whole … │ until both are steady, or took long enough

Iterations with stamps between the layers alternate with iterations without, so that other load on the machine
affects both alike. The result is the mean over the faster half of the iterations: noise only adds time, and means of
layers over the same iterations add up to the mean of the iterations, which medians would not.
"""

import statistics
from collections.abc import Sequence

from deeppool.device.kinds import emulated_sheet

STEADY = 0.03
"""Sampling stops when the spread of both kinds of iteration is at most this."""
MINIMUM_RUNS = 5
MAXIMUM_RUNS = 50
MINIMUM_SECONDS = 0.5
MAXIMUM_SECONDS = 6.0
"""Default time limit per batch size, after which two layered iterations and a whole one suffice."""
LONG_ITERATION = 2.0
"""Seconds of an iteration that needs no separate warm-up: the extra cost of a first run is small relative to it, and
the lower of two runs counts."""


def faster_half(times: Sequence[float]) -> list[int]:
    """Returns the indices of the faster half of the iterations, rounded up."""
    order = sorted(range(len(times)), key=times.__getitem__)
    return sorted(order[: (len(times) + 1) // 2])


def typical(times: Sequence[float]) -> float:
    """Returns the mean of the faster half."""
    return statistics.fmean(times[index] for index in faster_half(times))


def spread(times: Sequence[float]) -> float:
    """Returns half the interquartile range over the median; for two times half the difference, for one 0."""
    middle = statistics.median(times)
    if len(times) < 2 or not middle:
        return 0.0
    lower, upper = min(times), max(times)
    if len(times) > 2:
        lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
    return (upper - lower) / 2 / middle


def minimum_seconds(device: str) -> float:
    """Returns the least seconds of all iterations on a device; 0 where time is virtual and all take equally long."""
    return MINIMUM_SECONDS if emulated_sheet(device) is None else 0.0


def is_sufficient(
    layered: Sequence[float],
    whole: Sequence[float],
    most: float = MAXIMUM_SECONDS,
    least: float = MINIMUM_SECONDS,
) -> bool:
    """Whether these iterations suffice.

    Args:
        layered: seconds of those with stamps between the layers.
        whole: seconds of those without.
        most: time limit in seconds.
        least: see :func:`minimum_seconds`.
    """
    if len(layered) < 2 or not whole:
        return False
    spent = sum(layered) + sum(whole)
    runs = min(len(layered), len(whole))
    if spent >= most or runs >= MAXIMUM_RUNS:
        return True
    return runs >= MINIMUM_RUNS and spent >= least and max(spread(layered), spread(whole)) <= STEADY


def progress(layered: Sequence[float], whole: Sequence[float], most: float = MAXIMUM_SECONDS) -> float:
    """Returns the estimated completed fraction; the final number of iterations is not known in advance."""
    by_time = (sum(layered) + sum(whole)) / most
    by_runs = min(len(layered), len(whole)) / MINIMUM_RUNS
    return min(max(by_time, by_runs), 0.95)

"""Measures all pairs of kernels in turn, several times, so that a machine that becomes slower affects all of them."""

from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.typing import NDArray

from deeppool.collocation.interference.cpu_bench import CpuBench
from deeppool.collocation.interference.stream_bench import StreamBench

PairBench = CpuBench | StreamBench
"""Kernels of a foreground and a background, by number, and the arrangements of the two."""


def measure_rates(
    bench: PairBench, classes: int, seconds: float, rounds: int, report: Callable[[float], None]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns medians over the rounds, in each of which a rate is relative to the median alone.

    Args:
        bench: bench that runs the kernels.
        classes: number of kernel classes.
        seconds: duration of each pair in each round.
        rounds: number of rounds.
        report: called with the share that is done.

    Returns:
        Rates as parts of alone: arrangement x (foreground, background) x class of the foreground x of the background;
        and the seconds of a kernel of each class alone.
    """

    def part(number: int) -> Callable[[float], None]:
        return lambda share: report((number + share) / rounds)

    found = [_one_round(bench, classes, seconds, part(number)) for number in range(rounds)]
    rates, alone = (np.median(each, axis=0) for each in zip(*found, strict=True))
    return rates, 1 / alone


def _one_round(
    bench: PairBench, classes: int, seconds: float, report: Callable[[float], None]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    names = bench.arrangements
    rates = np.empty((len(names), 2, classes, classes))
    alone: list[list[float]] = [[] for _ in range(classes)]
    for background, foreground in product(range(classes), repeat=2):
        alone[foreground].append(bench.alone(foreground, seconds / 2))
        for at, name in enumerate(names):
            rates[at, :, foreground, background] = bench.together(name, foreground, background, seconds)
        report((background * classes + foreground + 1) / classes**2)
    known = np.array([np.median(found) for found in alone])
    rates[:, 0] /= known[:, None]
    rates[:, 1] /= known[None, :]
    return rates, known

"""Predicted time of an iteration of data parallelism in two waves, simulated event by event on one of equal ranks.

    forward m   after forward m - 1, and after exchange m - 2, whose replica it is
    backward m  after forward m and backward m - 1
    exchange m  after backward m and exchange m - 1: the sum of the gradients over the ranks

A forward of one wave and a backward of the other share the GPU; an exchange takes nothing from them. This is the order
of ``driver``; the control, one wave of twice the batch, has no order to simulate.
"""

import math
from dataclasses import dataclass

from deeppool.errors import InvalidValueError

ITERATIONS = 64
"""Of which the second half is timed, when the pattern repeats."""


@dataclass(frozen=True, slots=True)
class TickTockCosts:
    """Seconds of the parts of an iteration of one wave on one rank."""

    forward: float
    """Of its batch, alone on the GPU."""
    backward: float
    exchange: float
    """Of summing all gradients over the ranks."""
    beside: float
    """Speed of a forward and of a backward that share the GPU, in times of that alone: 0.5 where one leaves nothing to
    the other, 1 where neither notices the other."""

    def __post_init__(self) -> None:
        if min(self.forward, self.backward, self.exchange) < 0 or not 0.5 <= self.beside <= 1:
            raise InvalidValueError(f"seconds must not be negative, and beside must be 0.5 to 1, got {self}")


def tick_tock_time(costs: TickTockCosts) -> float:
    """Returns the mean seconds from one iteration to the next."""
    seconds = (costs.forward, costs.backward, costs.exchange)
    left = list(seconds)
    done = [0, 0, 0]
    """Of forwards, backwards and exchanges; each kind is done in order."""
    now = started = 0.0
    while done[2] < ITERATIONS:
        runs = (done[2] >= done[0] - 1, done[0] > done[1], done[1] > done[2])
        shared = costs.beside if runs[0] and runs[1] else 1.0
        speeds = [shared * runs[0], shared * runs[1], 1.0 * runs[2]]
        ends = [part / speed if speed else math.inf for part, speed in zip(left, speeds, strict=True)]
        first = min(range(3), key=ends.__getitem__)
        now += (step := ends[first])
        left = [max(0.0, part - step * speed) for part, speed in zip(left, speeds, strict=True)]
        left[first] = seconds[first]
        done[first] += 1
        if first == 2 and done[2] == ITERATIONS // 2:
            started = now
    return (now - started) / (ITERATIONS - ITERATIONS // 2)

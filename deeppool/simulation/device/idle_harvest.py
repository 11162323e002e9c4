"""Background work done while a foreground waits: the shorter the wait, the smaller its fraction of work alone."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from deeppool.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class IdleHarvest:
    """Harvest per length of wait, measured for a background of lowest priority on the foreground's core."""

    seconds: tuple[float, ...]
    """Lengths of waits, ascending."""
    harvest: tuple[float, ...]
    """Work done in such a wait, as a fraction of the work done alone."""
    in_transfers: float = 1.0
    """Harvest of the short waits inside transfers and all-reduces; 1 where not measured, which takes two cores."""

    def __post_init__(self) -> None:
        if not self.seconds or min(self.seconds) <= 0 or any(after <= one for one, after in pairwise(self.seconds)):
            raise InvalidValueError(f"seconds of waits must be positive and ascend, got {self.seconds}")
        if len(self.harvest) != len(self.seconds) or not all(0 <= part <= 1 for part in self.harvest):
            raise InvalidValueError(
                f"harvest must be a part, from 0 to 1, for each of {len(self.seconds)} waits, got {self.harvest}"
            )
        if not 0 <= self.in_transfers <= 1:
            raise InvalidValueError(f"in_transfers must be a part, from 0 to 1, got {self.in_transfers:g}")

    def at(self, seconds: float) -> float:
        """Returns the harvest of a wait: linear in the logarithm of its length between measurements, else constant."""
        return sum(weight * self.harvest[index] for index, weight in interpolation_weights(self.seconds, seconds))

    def __str__(self) -> str:
        parts = ", ".join(f"{100 * part:.0f}" for part in self.harvest)
        lengths = ", ".join(f"{1e3 * seconds:g}" for seconds in self.seconds)
        text = f"the lowest priority gets {parts} % of waits of {lengths} ms"
        return f"{text}, {100 * self.in_transfers:.0f} % inside transfers" if self.in_transfers < 1 else text


FULL_HARVEST = IdleHarvest((1.0,), (1.0,))
"""A harvest that uses every wait in full."""


def interpolation_weights(grid: Sequence[float], value: float) -> list[tuple[int, float]]:
    """Returns the grid points around a value and their weights by its logarithm, which sum to 1."""
    if value <= grid[0]:
        return [(0, 1.0)]
    if value >= grid[-1]:
        return [(len(grid) - 1, 1.0)]
    above = bisect_right(grid, value)
    low, high = grid[above - 1], grid[above]
    weight = math.log(value / low) / math.log(high / low)
    return [(above - 1, 1 - weight), (above, weight)]

"""Speeds of concurrent foreground and background kernels, interpolated between measured pairs.

DeepPool's figure 12: every pair of synthetic kernels of varied arithmetic intensity and duration, relative to their
speed alone. ``deeppool.collocation.interference`` measures them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import ClassVar, Literal

from deeppool.errors import InvalidValueError
from deeppool.simulation.device.collocated import Rates, SimulatedPiece, SimulatedStep
from deeppool.simulation.device.idle_harvest import FULL_HARVEST, IdleHarvest, interpolation_weights

Pairs = tuple[tuple[float, ...], ...]
"""Speeds per class of the foreground kernel (row) and of the background kernel (column)."""


SLOWEST, FASTEST = 1e-4, 100.0
"""Rates that count as measured: beyond them a simulation would hardly end."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Speeds of all pairs in one arrangement of the two jobs; 1 is as fast as alone."""

    name: str
    """Priority of the background on the same core or GPU (``normal``, ``nice``, ``lowest``), or ``other core``."""
    foreground: Pairs
    background: Pairs


@dataclass(frozen=True, slots=True)
class Interference:
    """Speeds of concurrent kernels on one device.

    A kernel class is an intensity and a duration; classes are ordered by intensity, then by duration.
    """

    KIND: ClassVar[str] = "interference"

    device_name: str
    date: str
    method: str
    intensities: tuple[float, ...]
    """FLOP per byte of a kernel, ascending."""
    durations: tuple[float, ...]
    """Seconds of a kernel alone, ascending."""
    arrangements: tuple[Arrangement, ...]
    waits: IdleHarvest | None = None
    """Harvest of waits; None: not measured, as on GPUs; a background then uses every wait in full."""
    basis: Literal["measured", "emulated"] = "measured"
    """Whether it was measured on a processor, or on an emulated device."""

    def __post_init__(self) -> None:
        classes = len(self.intensities) * len(self.durations)
        for axis, values in (("intensities", self.intensities), ("durations", self.durations)):
            if not values or min(values) <= 0 or any(after <= before for before, after in pairwise(values)):
                raise InvalidValueError(f"{axis} must be positive and ascend, got {values}")
        if not self.arrangements:
            raise InvalidValueError("interference needs an arrangement of the two jobs, got none")
        for found in self.arrangements:
            for job, pairs in (("foreground", found.foreground), ("background", found.background)):
                if len(pairs) != classes or {len(row) for row in pairs} != {classes}:
                    raise InvalidValueError(
                        f"arrangement {found.name} must have {classes} x {classes} rates of the {job}, "
                        f"for {len(self.intensities)} intensities and {len(self.durations)} durations"
                    )
            slowest, fastest = min(map(min, found.foreground)), max(map(max, found.foreground + found.background))
            if slowest < SLOWEST or fastest > FASTEST or min(map(min, found.background)) < 0:
                raise InvalidValueError(
                    f"arrangement {found.name} has a foreground speed of 0, or negative speeds: foreground rates "
                    f"must be {SLOWEST:g} to {FASTEST:g} and background rates 0 to {FASTEST:g} (1 is as fast as alone)"
                )

    def arrangement(self, name: str) -> Arrangement:
        """Returns an arrangement by name.

        Raises:
            InvalidValueError: it was not measured.
        """
        for found in self.arrangements:
            if found.name == name:
                return found
        known = ", ".join(found.name for found in self.arrangements)
        raise InvalidValueError(f"no interference was measured for {name} (choose one of: {known})")

    def rates(self, name: str) -> Rates:
        """Returns the speeds in an arrangement: linear in the logarithms between measured classes, constant outside.

        For an unknown intensity it is the mean over the measured ones.
        """
        found = self.arrangement(name)

        weights = lru_cache(maxsize=4096)(self._weights)

        # Deep models pair hundreds of operators with hundreds of pieces many times.
        @lru_cache(maxsize=2**17)
        def interpolate(*kernels: float | None) -> tuple[float, float]:
            rows, columns = weights(*kernels[:2]), weights(*kernels[2:])
            return _weighted(found.foreground, rows, columns), _weighted(found.background, rows, columns)

        def look_up(step: SimulatedStep, piece: SimulatedPiece) -> tuple[float, float]:
            return interpolate(step.intensity, step.seconds, piece.intensity, piece.seconds)

        return look_up

    def idle_harvest(self, name: str) -> IdleHarvest:
        """Returns the harvest of waits in an arrangement; only that of the lowest priority is measured."""
        return FULL_HARVEST if self.waits is None or name != "lowest" else self.waits

    def _weights(self, intensity: float | None, seconds: float) -> list[tuple[int, float]]:
        """Returns the weights of the classes around a kernel, which sum to 1."""
        count = len(self.intensities)
        rows = (
            [(row, 1 / count) for row in range(count)]
            if intensity is None
            else interpolation_weights(self.intensities, intensity)
        )
        along = product(rows, interpolation_weights(self.durations, seconds))
        return [(row * len(self.durations) + column, one * other) for (row, one), (column, other) in along]

    def __str__(self) -> str:
        lines = [f"interference on {self.device_name}, {self.date}: foreground speed relative to alone"]
        for found in self.arrangements:
            rates = sorted(100 * rate for row in found.foreground for rate in row)
            middle = rates[len(rates) // 2]
            lines.append(f"  {found.name:<12} worst {rates[0]:.0f} %, median {middle:.0f} %, best {rates[-1]:.0f} %")
        if self.waits is not None:
            lines.append(f"  {self.waits}")
        return "\n".join(lines)


def _weighted(pairs: Pairs, rows: Sequence[tuple[int, float]], columns: Sequence[tuple[int, float]]) -> float:
    return sum(one * other * pairs[row][column] for (row, one), (column, other) in product(rows, columns))

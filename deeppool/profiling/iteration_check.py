"""How far to trust a profile: its layers against the whole iteration, and its line against its last size."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeppool.units import format_bytes, format_percent, format_seconds

EAGER_BOUND = 0.08
"""The most that the sum of the layers may differ from the measured whole iteration."""
GRAPHS_BOUND = 0.05
"""The same under CUDA graphs, where no launch from the host comes between."""


def bound(graphs: bool) -> float:
    """Share of the whole iteration by which the layers may be off before a profile says so."""
    return GRAPHS_BOUND if graphs else EAGER_BOUND


@dataclass(frozen=True, slots=True)
class IterationCheck:
    """The layers of a profile, added up, against the whole iteration: same device, same mode, measured in turns."""

    batch: int
    layers: float
    """Seconds of forward and backward, summed over the layers."""
    iteration: float
    """Seconds of forward and backward of the whole program, with no stamps inside."""
    spread: float
    """The larger of the two kinds of iteration's; see :func:`deeppool.profiling.measure.sampling.spread`."""
    runs: int
    """Whole iterations measured."""
    peak_memory: int | None = None
    """Bytes at the highest point of an iteration; None where the device does not count."""

    @property
    def deviation(self) -> float:
        """Share by which the layers add up to more than the iteration; negative: to less."""
        return self.layers / self.iteration - 1

    def __str__(self) -> str:
        memory = "" if self.peak_memory is None else f", peak memory {format_bytes(self.peak_memory)}"
        return (
            f"batch {self.batch}: layers add up to {format_seconds(self.layers)}, the whole iteration took "
            f"{format_seconds(self.iteration)} ({format_percent(self.deviation)}; spread {100 * self.spread:.1f} %, "
            f"{self.runs} run{'s' * (self.runs > 1)}){memory}"
        )


def deviation_warning(checks: tuple[IterationCheck, ...], graphs: bool) -> str | None:
    """One sentence about the batch size at which the layers are off the most, where that is beyond the bound."""
    worst = max(checks, key=lambda check: abs(check.deviation), default=None)
    if worst is None or abs(worst.deviation) <= bound(graphs):
        return None
    direction = "more" if worst.deviation > 0 else "less"
    return (
        f"the profile's layers add up to {100 * abs(worst.deviation):.1f} % {direction} than the whole iteration at "
        f"batch {worst.batch}, beyond its bound of {100 * bound(graphs):.0f} % (profile again on an idle machine)"
    )


def extrapolation_accuracy(sizes: tuple[int, ...], error: float | None) -> str:
    """How well the straight line above the largest size predicted that size itself."""
    if error is None:
        return "a straight line, never tried, because that takes three sizes"
    below = f"{sizes[-3]} and {sizes[-2]}"
    return f"a straight line, which predicts batch {sizes[-1]} from {below} with {100 * error:.1f} % error"


def extrapolation_warning(layers: Sequence[str], sizes: tuple[int, ...], error: float | None) -> str:
    """One sentence about layers whose times were asked for above the largest measured size."""
    some = layers[0] if len(layers) == 1 else f"{len(layers)} layers ({layers[0]} … {layers[-1]})"
    return f"the times of {some} lie beyond batch {sizes[-1]}, the largest measured: {extrapolation_accuracy(sizes, error)}"

"""Accuracy checks of a profile: layer sum against the whole iteration, and extrapolation error."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeppool.errors import InvalidValueError
from deeppool.units import format_bytes, format_percent, format_seconds

EAGER_BOUND = 0.08
"""Largest accepted relative deviation of the sum of the layers from the whole iteration, run eagerly."""
GRAPHS_BOUND = 0.05
"""Largest accepted relative deviation under CUDA graphs, where launches from the host add no time."""


def bound(graphs: bool) -> float:
    """Returns the relative deviation of the layer sum beyond which a profile has a warning."""
    return GRAPHS_BOUND if graphs else EAGER_BOUND


@dataclass(frozen=True, slots=True)
class IterationCheck:
    """Sum of a profile's layers against the whole iteration, measured alternately on the same device."""

    batch: int
    layers: float
    """Forward plus backward seconds, summed over the layers."""
    iteration: float
    """Forward plus backward seconds of the whole program without time stamps between layers."""
    spread: float
    """The larger spread of the two kinds of iteration; see :func:`deeppool.profiling.measure.sampling.spread`."""
    runs: int
    """Number of measured whole iterations."""
    peak_memory: int | None = None
    """Peak bytes of an iteration; None where the device has no memory statistics."""

    def __post_init__(self) -> None:
        if self.iteration <= 0:
            raise InvalidValueError(f"an iteration of batch {self.batch} takes some time, got {self.iteration:g} s")

    @property
    def deviation(self) -> float:
        """Relative excess of the layer sum over the iteration."""
        return self.layers / self.iteration - 1

    def __str__(self) -> str:
        memory = "" if self.peak_memory is None else f", peak memory {format_bytes(self.peak_memory)}"
        return (
            f"batch {self.batch}: layers add up to {format_seconds(self.layers)}, the whole iteration took "
            f"{format_seconds(self.iteration)} ({format_percent(self.deviation)}; spread {100 * self.spread:.1f} %, "
            f"{self.runs} run{'s' * (self.runs > 1)}){memory}"
        )


def deviation_warning(checks: tuple[IterationCheck, ...], graphs: bool) -> str | None:
    """Returns a sentence about the batch size with the largest deviation, where it exceeds the bound."""
    worst = max(checks, key=lambda check: abs(check.deviation), default=None)
    if worst is None or abs(worst.deviation) <= bound(graphs):
        return None
    direction = "more" if worst.deviation > 0 else "less"
    return (
        f"the profile's layers add up to {100 * abs(worst.deviation):.1f} % {direction} than the whole iteration at "
        f"batch {worst.batch}, beyond the bound of {100 * bound(graphs):.0f} % (profile again on an idle machine)"
    )


def extrapolation_accuracy(sizes: tuple[int, ...], error: float | None) -> str:
    """Describes the linear extrapolation beyond the largest size by its error at that size."""
    if error is None:
        return "linear extrapolation of unknown error, as fewer than three sizes were measured"
    below = f"{sizes[-3]} and {sizes[-2]}"
    return f"linear extrapolation, which misses batch {sizes[-1]} by {100 * error:.1f} % when fitted to {below}"


def extrapolation_warning(layers: Sequence[str], sizes: tuple[int, ...], error: float | None) -> str:
    """Returns a sentence about layers whose times are extrapolated above the largest size of the profile."""
    some = layers[0] if len(layers) == 1 else f"{len(layers)} layers ({layers[0]} … {layers[-1]})"
    accuracy = extrapolation_accuracy(sizes, error)
    return f"the times of {some} are extrapolated beyond batch {sizes[-1]}, the largest of the profile: {accuracy}"

"""What a background saves: the price of the GPU time that it used, minus that of the foreground's slowdown."""

from dataclasses import dataclass
from typing import Self

from deeppool.base.number_checks import positive_number
from deeppool.errors import InvalidValueError
from deeppool.units import format_rate


@dataclass(frozen=True, slots=True)
class CostSaved:
    """Cost that a background saved while it was collocated; on a CPU, a rank's core counts as its GPU."""

    gpu_price: float
    """Price of a GPU-hour, in any currency."""
    gpu_seconds: float
    """GPU-seconds of the measured time beside the background: its seconds times the ranks."""
    harvested_gpu_seconds: float
    """GPU-seconds that the background's work would have taken alone at the same batch: its harvest of them."""
    slowdown_gpu_seconds: float
    """GPU-seconds that the foreground took more than the same iterations alone, on the GPUs that it uses."""
    saved: float
    """(harvested - slowdown - unused) x price, for the measured time; below 0 the background cost more than it gave."""
    saved_per_gpu_hour: float
    """The same for one GPU and hour: the part of its price that is saved."""
    unused_gpu_seconds: float = 0.0
    """GPU-seconds of GPUs that the foreground never uses, which the background could have to itself."""

    @classmethod
    def of(
        cls, *, seconds: float, slowdown: float, harvest: float, ranks: int, gpu_price: float, unused: int = 0
    ) -> Self:
        """Computes it.

        Args:
            seconds: measured time beside the background.
            slowdown: of the foreground: 0.03 is 3 %.
            harvest: throughput of the background relative to that on as many GPUs alone.
            ranks: ranks that were measured.
            gpu_price: price of a GPU-hour.
            unused: ranks that the foreground never uses.
        """
        held, free = ranks * seconds, unused * seconds
        harvested = harvest * held
        slowed = (held - free) * slowdown / (1 + slowdown)
        saved = (harvested - slowed - free) * gpu_price / 3600
        return cls(gpu_price, held, harvested, slowed, saved, saved * 3600 / held, free)

    def __str__(self) -> str:
        return (
            f"{self.saved_per_gpu_hour:.3g} per GPU-hour at {self.gpu_price:g}: harvested "
            f"{format_rate(self.harvested_gpu_seconds)} GPU-s, slowdown {format_rate(self.slowdown_gpu_seconds)}"
            + (
                f", on GPUs that nothing else uses {format_rate(self.unused_gpu_seconds)}"
                if self.unused_gpu_seconds
                else ""
            )
            + f", of {format_rate(self.gpu_seconds)}"
        )


def check_gpu_price(price: float | None, *, has_background: bool) -> None:
    """Raises InvalidValueError for a price that is not positive, or of a run without background."""
    if price is None:
        return
    positive_number("gpu_price", price, "the price of a GPU-hour")
    if not has_background:
        raise InvalidValueError(
            "gpu_price is for what a background job saves (give background=, and another policy than 'none')"
        )

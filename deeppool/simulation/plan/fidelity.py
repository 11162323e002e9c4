"""Errors of a simulation against a live run."""

import math
from dataclasses import dataclass
from typing import ClassVar

from deeppool.simulation.plan.conditions import Conditions
from deeppool.units import format_growth, format_seconds


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number, simulated and measured."""

    name: str
    unit: str
    """``s``, or empty for a fraction."""
    simulated: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the simulation: -0.1 is 10 % too little."""
        if not self.measured:
            return math.inf if self.simulated else 0.0
        return self.simulated / self.measured - 1

    def __str__(self) -> str:
        text = f"{self.name} {self.text_of(self.simulated)} for {self.text_of(self.measured)}"
        return f"{text} ({format_growth(self.error)})" if math.isfinite(self.error) else text

    def text_of(self, value: float) -> str:
        """Formats one of the two numbers with its unit."""
        return format_seconds(value) if self.unit == "s" else f"{100 * value:.1f} %"


@dataclass(frozen=True, slots=True)
class Fidelity:
    """A simulation against a live run of the same plan, background and policy."""

    KIND: ClassVar[str] = "fidelity"

    model: str
    where: str
    """Ranks and device of the run."""
    date: str
    """Date of the run."""
    policy: str
    background: str | None
    interference: str
    """Interference that the simulation modelled."""
    update_time: float
    """Seconds per iteration of the update on the run's slowest rank where the plan does not predict it, else 0. It is
    subtracted from measured iteration times; fractions of time refer to simulated iterations including it."""
    quantities: tuple[Quantity, ...]
    conditions: Conditions | None = None
    """Conditions that the simulation modelled; None: all as planned."""

    @property
    def worst(self) -> Quantity:
        """Quantity with the largest error."""
        return max(self.quantities, key=lambda quantity: abs(quantity.error))

    def within(self, bound: float) -> bool:
        """Whether all errors are within a bound; 0.15 is 15 %."""
        return abs(self.worst.error) <= bound

    def __str__(self) -> str:
        known = [self.interference]
        if self.conditions is not None:
            known.append(str(self.conditions))
        description = "; ".join([*map(str, self.quantities), *known])
        return f"simulated against the run of {self.date} on {self.where}: {description}"

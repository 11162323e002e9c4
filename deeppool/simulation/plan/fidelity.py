"""How far a simulation is from a live run of the same."""

import math
from dataclasses import dataclass
from typing import ClassVar

from deeppool.simulation.plan.conditions import Conditions
from deeppool.units import format_percent


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number, simulated and measured."""

    name: str
    unit: str
    """``s``, or empty for a share."""
    simulated: float
    measured: float

    @property
    def error(self) -> float:
        """Of the simulation, as a part of what was measured: -0.1 is 10 % too little."""
        if not self.measured:
            return math.inf if self.simulated else 0.0
        return self.simulated / self.measured - 1

    def __str__(self) -> str:
        unit = f" {self.unit}" * bool(self.unit)
        return f"{self.name} {self.simulated:.4g}{unit} for {self.measured:.4g}{unit} ({format_percent(self.error)})"


@dataclass(frozen=True, slots=True)
class Fidelity:
    """A simulation against a live run of the same plan, background and policy."""

    KIND: ClassVar[str] = "fidelity"

    model: str
    where: str
    """The run's ranks and device."""
    date: str
    """Of the run."""
    policy: str
    background: str | None
    interference: str
    """That the simulation knew."""
    update_time: float
    """Seconds of an iteration in which the run's slowest rank updated its weights. No plan predicts it: it is taken off
    measured iteration times, and shares of the time are those of simulated iterations with it."""
    quantities: tuple[Quantity, ...]
    conditions: Conditions | None = None
    """Other than planned, that the simulation knew; None: all as planned."""

    @property
    def worst(self) -> Quantity:
        """The one that is furthest off."""
        return max(self.quantities, key=lambda quantity: abs(quantity.error))

    def within(self, bound: float) -> bool:
        """Whether all of them are; 0.15 is 15 %."""
        return abs(self.worst.error) <= bound

    def __str__(self) -> str:
        known = [self.interference]
        if self.conditions is not None:
            known.append(str(self.conditions))
        description = "; ".join([*map(str, self.quantities), *known])
        return f"simulated against the run of {self.date} on {self.where}: {description}"

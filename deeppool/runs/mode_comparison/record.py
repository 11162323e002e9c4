"""What a comparison of training modes measured: loss and accuracy over time, by mode and seed."""

import math
import statistics
from dataclasses import dataclass, field
from typing import Literal

from deeppool.collectives.partial.firing import Mode
from deeppool.records.confidence_interval import confidence_half_width
from deeppool.units import format_count, format_seconds

VIRTUAL = "virtual clock"
"""Device name of comparisons whose gradients are computed and whose times are simulated."""


@dataclass(frozen=True, slots=True)
class ModePoint:
    """One instant of a training."""

    seconds: float
    """Since its start."""
    updates: int
    batch_loss: float
    """Mean loss of rank 0's batches since the last point."""
    loss: float = math.nan
    """On data that is not trained on; not a number while the training runs."""
    accuracy: float | None = None
    """On the same data; None for a regression."""


@dataclass(frozen=True, slots=True)
class ModeTraining:
    """One training."""

    mode: Mode
    seed: int
    gradients: int
    """Gradients of all ranks, on a virtual clock those in rounds; a late rank skips those of rounds without it."""
    points: tuple[ModePoint, ...] = field(repr=False)

    @property
    def final(self) -> ModePoint:
        """The end."""
        return self.points[-1]

    @property
    def update_time(self) -> float:
        """Mean seconds of an update."""
        return self.final.seconds / self.final.updates


@dataclass(frozen=True, slots=True)
class ModeComparison:
    """Trainings of one task by several modes, each with every seed."""

    task: str
    ranks: int
    step: float
    """Least seconds of a step, without delay."""
    device_name: str
    trainings: tuple[ModeTraining, ...] = field(repr=False)

    @property
    def basis(self) -> Literal["measured", "simulated"]:
        """Where the times come from; losses are computed in either case."""
        return "simulated" if self.device_name == VIRTUAL else "measured"

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes, in the order in which they were trained."""
        return tuple(dict.fromkeys(training.mode for training in self.trainings))

    @property
    def baseline(self) -> Mode:
        """Synchronous training; the first mode where that was not trained."""
        return "full" if "full" in self.modes else self.modes[0]

    def of(self, mode: Mode) -> tuple[ModeTraining, ...]:
        """Returns the trainings of a mode, in the order of seeds."""
        return tuple(training for training in self.trainings if training.mode == mode)

    def speedup(self, mode: Mode) -> tuple[float, float | None]:
        """Returns how much faster a mode updates than the baseline, with its 95 % interval over seeds."""
        pairs = zip(self.of(self.baseline), self.of(mode), strict=True)
        return _mean([first.update_time / other.update_time for first, other in pairs])

    def loss(self, mode: Mode) -> tuple[float, float | None]:
        """Returns the mean final loss of a mode, with its 95 % interval over seeds."""
        return _mean([training.final.loss for training in self.of(mode)])

    def accuracy(self, mode: Mode) -> tuple[float, float | None]:
        """Returns the mean final accuracy of a mode, with its 95 % interval over seeds."""
        return _mean([_accuracy(training.final) for training in self.of(mode)])

    def accuracy_gain(self, mode: Mode) -> tuple[float, float | None]:
        """Returns the final accuracy of a mode less the baseline's with the same seed, with its interval."""
        pairs = zip(self.of(self.baseline), self.of(mode), strict=True)
        return _mean([_accuracy(other.final) - _accuracy(first.final) for first, other in pairs])

    def time_to(self, mode: Mode, accuracy: float) -> float | None:
        """Returns the median seconds after which the trainings of a mode first reach an accuracy; None: not all do."""
        found = [
            next((point.seconds for point in training.points if _accuracy(point) >= accuracy), math.inf)
            for training in self.of(mode)
        ]
        return statistics.median(found) if max(found) < math.inf else None

    def __str__(self) -> str:
        heading = (
            f"{self.task} on {format_count(self.ranks, 'rank')}, {format_count(len(self.of(self.modes[0])), 'seed')} "
            f"({self.basis}, {self.device_name})"
        )
        return "\n  ".join([heading, *map(self._line, self.modes)])

    def _line(self, mode: Mode) -> str:
        trainings = self.of(mode)
        loss, speedup = self.loss(mode)[0], self.speedup(mode)[0]
        scored = trainings[0].final.accuracy is not None
        accuracy = f", accuracy {100 * self.accuracy(mode)[0]:.1f} %" if scored else ""
        update = statistics.median(training.update_time for training in trainings)
        # A late rank skips the batches of updates without it: more updates a second need not be more samples.
        share = sum(one.gradients / (one.final.updates * self.ranks) for one in trainings) / len(trainings)
        return (
            f"{mode:<15} {format_seconds(update)} an update ({speedup:.2f}x) of {100 * share:.0f} % of the samples, "
            f"loss {loss:.4g}{accuracy}"
        )


def _accuracy(point: ModePoint) -> float:
    return math.nan if point.accuracy is None else point.accuracy


def _mean(values: list[float]) -> tuple[float, float | None]:
    def without(block: range) -> float | None:
        kept = [value for number, value in enumerate(values) if number not in block]
        return statistics.fmean(kept) if kept else None

    return statistics.fmean(values), confidence_half_width(without, len(values))

"""Record of hyper-parameter trials: one :class:`TrialsRecord`, which is also the file in their folder."""

from dataclasses import dataclass
from typing import ClassVar

Value = bool | int | float | str | None
"""Value of a hyper-parameter."""
Configuration = dict[str, Value]


def format_configuration(configuration: Configuration) -> str:
    """Formats hyper-parameters: ``lr=0.1, width=8``."""
    return ", ".join(f"{name}={value}" for name, value in configuration.items())


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One trial so far."""

    configuration: Configuration
    steps: int
    """Updates made."""
    final_loss: float | None
    """Mean loss of its last steps, ten at most; None: it has not finished, or its loss is not a number."""
    ended: str
    """``finished``, ``waiting``, ``stopped with the foreground``, or what went wrong."""
    checkpoint: str | None
    """Folder of its weights; of the finished trials only the best one keeps them."""

    def __str__(self) -> str:
        loss = "" if self.final_loss is None else f"loss {self.final_loss:.4f} "
        kept = f"; weights in {self.checkpoint}" if self.checkpoint else ""
        return f"{format_configuration(self.configuration)}: {loss}after {self.steps} steps ({self.ended}){kept}"


@dataclass(frozen=True, slots=True)
class TrialsRecord:
    """Trials of several configurations of one training, on equal numbers of steps."""

    KIND: ClassVar[str] = "trials"

    steps: int
    """Updates of each trial."""
    batch: int
    """Samples per step."""
    results: tuple[TrialResult, ...]

    @property
    def best(self) -> TrialResult | None:
        """The finished trial with the lowest final loss; None: no trial has finished."""
        return min(self._finished, key=lambda result: result.final_loss or 0.0, default=None)

    @property
    def _finished(self) -> list[TrialResult]:
        return [result for result in self.results if result.final_loss is not None]

    def __str__(self) -> str:
        ranked = sorted(self._finished, key=lambda result: result.final_loss or 0.0)
        others = [result for result in self.results if result.final_loss is None]
        head = f"{len(ranked)} of {len(self.results)} trials finished, {self.steps} steps of batch {self.batch} each"
        lines = [f"{'best' if number == 0 else '    '}  {result}" for number, result in enumerate(ranked)]
        return "\n".join([head, *lines, *(f"      {result}" for result in others)])

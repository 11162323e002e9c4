"""The record of ways to train one model, measured by turns on the same ranks."""

import statistics
from dataclasses import dataclass
from typing import ClassVar

from deeppool.base.timeline import Timeline
from deeppool.errors import InvalidValueError
from deeppool.records.confidence_interval import check_rounds, format_ratio, median_ratio
from deeppool.units import format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class MeasuredWay:
    """Rounds of one way."""

    name: str
    seconds: tuple[float, ...]
    """Of each round, on its slowest rank; as many from each repetition."""
    samples: int
    """Samples of a round, over all ranks, and all jobs where there are several."""
    timeline: Timeline | None = None
    """A measured round of all ranks, where its spans are recorded."""
    note: str = ""
    """What differs from synchronous training of one job by the same batch; empty: nothing does."""
    technique: str = ""
    """Technique of an advice that it performs; empty: it is a baseline."""
    controls: tuple[str, ...] = ()
    """Ways that it must beat beside the baseline, those that were measured."""

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.seconds)

    @property
    def throughput(self) -> float:
        """Samples per second, in the median."""
        return self.samples / self.median


@dataclass(frozen=True, slots=True)
class MeasuredWays:
    """Ways of training one model on the same ranks, measured interleaved; the first is the baseline."""

    KIND: ClassVar[str] = "measured-ways"

    model: str
    global_batch: int
    ranks: int
    device_name: str
    ways: tuple[MeasuredWay, ...]
    repetitions: int
    """Times that all ways were measured, one after the other."""
    late: float
    """Seconds by which one rank, drawn anew for each step, was made late in every way."""
    date: str
    versions: dict[str, str]

    def __post_init__(self) -> None:
        if not self.ways:
            raise InvalidValueError("measured ways are at least one, the baseline, got none")
        check_rounds({way.name: way.seconds for way in self.ways}, self.repetitions)
        if min(way.samples for way in self.ways) < 1:
            raise InvalidValueError(f"each way trains on samples, got {[way.samples for way in self.ways]}")

    def way(self, name: str) -> MeasuredWay:
        """Returns a way.

        Raises:
            InvalidValueError: it was not measured.
        """
        found = next((way for way in self.ways if way.name == name), None)
        if found is None:
            raise InvalidValueError(f"'{name}' was not measured (there are {', '.join(way.name for way in self.ways)})")
        return found

    def gain(self, name: str, over: str | None = None) -> tuple[float, float | None]:
        """Returns how many times as many samples per second a way trains as another one.

        Args:
            name: the way.
            over: the other one. Default: the baseline.

        Returns:
            The ratio, and half of its 95 % confidence interval, which needs two repetitions.
        """
        ours, other = self.way(name), self.ways[0] if over is None else self.way(over)
        ratio, half_width = median_ratio(other.seconds, ours.seconds, self.repetitions)
        more = ours.samples / other.samples
        return ratio * more, None if half_width is None else half_width * more

    def __str__(self) -> str:
        late = f", one rank {format_seconds(self.late)} late in each step" if self.late else ""
        lines = [f"{self.model}, batch {self.global_batch} on {self.ranks} ranks of {self.device_name}{late}"]
        width = max(len(way.name) for way in self.ways)
        for way in self.ways:
            gain = "" if way is self.ways[0] else f", {format_ratio(*self.gain(way.name))} times {self.ways[0].name}"
            note = f" ({way.note})" if way.note else ""
            lines.append(
                f"{way.name:<{width}} {format_seconds(way.median):>9s} a round of {way.samples} samples: "
                f"{format_rate(way.throughput, 4)} samples/s{gain}{note}"
            )
        return "\n  ".join(lines)

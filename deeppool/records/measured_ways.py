"""Records of ways to train, measured by turns on the same ranks; every technique is judged by its fastest control."""

import statistics
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, Field

from deeppool.base.timeline import Timeline
from deeppool.errors import InvalidValueError
from deeppool.records.confidence_interval import (
    TAIL,
    Interval,
    check_rounds,
    format_with_interval,
    paired_ratio,
    typical_time,
)
from deeppool.units import format_count, format_rate, format_seconds

NO_INTERVAL, NO_DIFFERENCE = (
    "; one repetition has no interval",
    ": no difference shown (more repetitions narrow the interval)",
)


def shown(low: float | None, high: float | None) -> tuple[Literal["yes", "no", "unknown"], str]:
    """Returns the verdict of a gain's interval as it is printed, and in words what it shows where that is no gain."""
    if low is None or high is None:
        return "unknown", NO_INTERVAL
    if round(low, 2) > 1:
        return "yes", ""
    return ("no", ", a loss") if round(high, 2) < 1 else ("unknown", NO_DIFFERENCE)


@dataclass(frozen=True, slots=True)
class Lead:
    """Speed of a technique in times that of the fastest of its controls, with a 95 % confidence interval.

    The fastest control is known by noisy measurements only, and the least of several ratios is biased low. So every
    control counts: the lead is beyond 1 only if it is over each of them at 97.5 %. All of these have to hold, so none
    needs a correction (an intersection-union test). It is below 1 if it is so over any of n controls at 1 - 2.5 % / n:
    each of them could be so by chance (Bonferroni). Where m ways perform one technique, of which the best may be
    picked, the other end is at 1 - 2.5 % / m, too.
    """

    over: str
    """The control that was the fastest."""
    controls: int
    ratio: float
    low: float | None
    """Ends of the interval; None: one repetition has none."""
    high: float | None
    missing: tuple[str, ...] = ()
    """Controls that were not measured, without which nothing is known."""

    @property
    def verdict(self) -> Literal["yes", "no", "unknown"]:
        """Whether the technique is faster than all of its controls; unknown where the interval includes 1."""
        return self._shown[0]

    @property
    def _shown(self) -> tuple[Literal["yes", "no", "unknown"], str]:
        found = shown(self.low, self.high)
        if self.missing and found[0] == "yes":
            return "unknown", f"; not measured beside it: {', '.join(self.missing)}"
        return found

    def __str__(self) -> str:
        among = f", the fastest of {format_count(self.controls, 'control')}" if self.controls > 1 else ""
        found = format_with_interval(self.ratio, self.low, self.high)
        return f"{found} times the samples per second of {self.over}{among}{self._shown[1]}"


@dataclass(frozen=True, slots=True)
class MeasuredWay:
    """Rounds of one way."""

    name: Annotated[str, Field(validation_alias=AliasChoices("name", "order", "method"))]
    seconds: tuple[float, ...]
    """Of each round, on its slowest rank; as many from each repetition."""
    samples: int = 1
    """Samples of a round, over all ranks, and all jobs where there are several; 1 in files of earlier versions, in
    which all ways have as many."""
    timeline: Timeline | None = None
    """A measured round, where its spans are recorded."""
    note: str = ""
    """What differs from synchronous training of one job by the same batch; empty: nothing does."""
    technique: str = ""
    """Technique that it performs, as an advice names it; empty: it is a control."""
    control_of: str = ""
    """The only technique that it is a control of, as it changes the training likewise; empty: of all."""
    controls: tuple[str, ...] = ()
    """Controls without which it is not said to be faster."""
    predicted: float | None = None
    """Seconds of a round by formula; None: there is none."""
    idle_ranks: int = 0
    """Ranks that it leaves to others."""

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class MeasuredComparison:
    """Ways of training on the same ranks, measured interleaved: techniques, and the controls that they have to beat.

    Which ways are controls of which follows from the ways: nobody chooses a baseline.
    """

    ranks: int
    device_name: str
    ways: Annotated[tuple[MeasuredWay, ...], Field(validation_alias=AliasChoices("ways", "orders", "methods"))]
    repetitions: int
    """Times that all ways were measured, one after the other."""
    date: str
    versions: dict[str, str]

    def __post_init__(self) -> None:
        if not self.ways:
            raise InvalidValueError("measured ways are at least one, got none")
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

    def round_time(self, way: MeasuredWay) -> float:
        """Returns the seconds of a round, of which ratios are made; in the median of each repetition."""
        return typical_time(way.seconds, self.repetitions)

    def controls(self, technique: str) -> tuple[MeasuredWay, ...]:
        """Returns the ways that a technique has to beat; of one that is empty, those of every technique."""
        return tuple(way for way in self.ways if not way.technique and way.control_of in ("", technique))

    def gain(self, name: str, over: str, below: float = TAIL, above: float = TAIL) -> Interval:
        """Returns how many times as many samples per second a way trains as another one.

        Args:
            name: the way.
            over: the other one.
            below: probability that the true ratio is below the interval, of 95 % by default.
            above: probability that it is above.
        """
        ours, other = self.way(name), self.way(over)
        ratio, low, high = paired_ratio(other.seconds, ours.seconds, self.repetitions, below, above)
        more = ours.samples / other.samples
        return ratio * more, None if low is None else low * more, None if high is None else high * more

    def lead(self, name: str) -> Lead | None:
        """Returns the gain of a way that performs a technique over the fastest of its controls.

        None: it performs none, or no control of it was measured.
        """
        technique = self.way(name).technique
        controls = [way.name for way in self.controls(technique)] if technique else []
        if not controls:
            return None
        peers = sum(way.technique == technique for way in self.ways)
        gains = {over: self.gain(name, over, TAIL / peers, TAIL / len(controls)) for over in controls}
        over = min(controls, key=lambda each: gains[each][0])
        low, high = (min(filter(None, ends), default=None) for ends in list(zip(*gains.values(), strict=True))[1:])
        missing = tuple(each for each in self.way(name).controls if each not in controls)
        return Lead(over, len(controls), gains[over][0], low, high, missing)

    def standing(self, name: str) -> tuple[Interval, str]:
        """Returns a technique's lead, or the gain of a control over the fastest one, with its interval and in words."""
        if lead := self.lead(name):
            return (lead.ratio, lead.low, lead.high), str(lead)
        fastest = max(self.controls(""), key=lambda way: way.samples / self.round_time(way), default=None)
        if fastest is None or fastest.name == name:
            return (1.0, None, None), "the fastest control" if fastest else "no control was measured"
        gain = self.gain(name, fastest.name)
        return gain, f"{format_with_interval(*gain)} times {fastest.name}"

    @property
    def heading(self) -> str:
        """What was measured, and where."""
        return f"{self.ranks} ranks of {self.device_name}"

    def about(self, way: MeasuredWay) -> str:
        """Returns what else the text says of a way."""
        return f" ({way.note})" if way.note else ""

    def __str__(self) -> str:
        width = max(len(way.name) for way in self.ways)
        lines = [self.heading]
        for way in self.ways:
            predicted = "" if way.predicted is None else f", predicted {format_seconds(way.predicted)}"
            seconds = self.round_time(way)
            of, speed = f" of {way.samples} samples", f"{format_rate(way.samples / seconds, 4)} samples/s, "
            if way.samples == 1:
                of = speed = ""
            lines.append(
                f"{way.name:<{width}} {format_seconds(seconds):>9s} a round{of}{predicted}: {speed}"
                f"{self.standing(way.name)[-1]}{self.about(way)}"
            )
        return "\n  ".join(lines)


@dataclass(frozen=True, slots=True)
class MeasuredWays(MeasuredComparison):
    """Ways of training one model."""

    KIND: ClassVar[str] = "measured-ways"

    model: str
    global_batch: int
    late: float
    """Seconds by which one rank, drawn anew for each step, was made late in every way."""

    @property
    def heading(self) -> str:
        """What was measured, and where."""
        late = f", one rank {format_seconds(self.late)} late in each step" if self.late else ""
        return f"{self.model}, batch {self.global_batch} on {self.ranks} ranks of {self.device_name}{late}"

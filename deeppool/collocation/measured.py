"""What was measured of a foreground: under one condition, and beside a background apart for each bound it held."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deeppool.child import Message
from deeppool.collocation.neighbours import Work
from deeppool.run_record import Phase, summarise
from deeppool.steering import HeldBound


@dataclass(slots=True)
class Measured:
    """The foreground under one condition, over all rounds."""

    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, answers: Sequence[Message]) -> None:
        """What each rank measured in one phase."""
        self.times += answers[0]["times"]
        self.cpu = [a + b["cpu"] for a, b in zip(self.cpu or [0.0] * len(answers), answers, strict=True)]
        self.seconds += max(answer["wall"] for answer in answers)

    def phase(self, batch: int, times: list[float] | None = None) -> Phase:
        """Its summary, for a global batch; of some of its iterations where ``times`` says so, idle shares of all."""
        times = self.times if times is None else times
        idle = tuple(max(0.0, 1 - cpu / self.seconds) for cpu in self.cpu)
        return Phase(summarise(times), batch * len(times) / sum(times), idle)


@dataclass(slots=True)
class Held:
    """What was measured beside the background while one bound was held."""

    bound: float | None
    since: float
    times: list[float] = field(default_factory=list)
    """Of iterations in which every rank held it."""
    work: Work = field(default_factory=Work)

    def result(self, alone: float, batch: int) -> HeldBound:
        """For a foreground that takes ``alone`` seconds alone, and a batch of the background."""
        mean = sum(self.times) / len(self.times) if self.times else None
        return HeldBound(
            bound=self.bound,
            since=self.since,
            iterations=len(self.times),
            iteration_time=mean,
            slowdown=None if mean is None else mean / alone - 1,
            background_throughput=batch * self.work.steps / self.work.seconds if self.work.seconds else None,
        )


def divide(answers: Sequence[Message], held: Sequence[Held]) -> None:
    """Gives each iteration of a phase to the bound that all ranks held in it; those in between go to none."""
    for seconds, numbers in zip(answers[0]["times"], _numbers(answers), strict=True):
        if len(numbers) == 1:
            held[numbers.pop()].times.append(seconds)


def _numbers(answers: Sequence[Message]) -> Iterable[set[int]]:
    """Of the bounds that the ranks held, for each iteration."""
    return (set(numbers) for numbers in zip(*(answer["bounds"] for answer in answers), strict=True))


def last_measured(held: Sequence[Held]) -> Held:
    """The one whose numbers stand for the run: of the last bound under which anything was measured."""
    return next((one for one in reversed(held) if one.times), held[-1])

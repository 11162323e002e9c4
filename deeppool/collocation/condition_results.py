"""What was measured of a foreground: under one condition, and beside a background apart for each bound it held."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import fmean

from deeppool.base.run_control import BoundInterval
from deeppool.collocation.background_group import WorkDone
from deeppool.processes.managed_process import Message
from deeppool.records.confidence_interval import confidence_half_width
from deeppool.records.run_record import Phase, summarise

Turns = list[list[float]]
"""Seconds of each iteration, by round."""


@dataclass(slots=True)
class ConditionResults:
    """The foreground under one condition, over all rounds."""

    turns: Turns = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, answers: Sequence[Message]) -> None:
        """What each rank measured in one round."""
        self.turns.append(answers[0]["times"])
        self.cpu = [a + b["cpu"] for a, b in zip(self.cpu or [0.0] * len(answers), answers, strict=True)]
        self.seconds += max(answer["wall"] for answer in answers)

    def phase(self, batch: int, together: int = 1, turns: Turns | None = None) -> Phase:
        """Its summary.

        Args:
            batch: the global one.
            together: rounds in a row that may be alike.
            turns: some of its iterations, which it then is of; idle shares are of all.
        """
        turns = self.turns if turns is None else turns
        times = list(chain.from_iterable(turns))
        idle = tuple(max(0.0, 1 - cpu / self.seconds) for cpu in self.cpu)
        summary = replace(
            summarise(times), margin=confidence_half_width(lambda left_out: mean(turns, left_out), len(turns), together)
        )
        return Phase(summary, batch * len(times) / sum(times), idle)


@dataclass(slots=True)
class BoundResults:
    """What was measured beside the background while one bound was held."""

    bound: float | None
    since: float
    turns: Turns = field(default_factory=list)
    """Of iterations in which every rank held it; empty before it was known."""
    work: WorkDone = field(default_factory=WorkDone)

    def result(self, alone: float, batch: int) -> BoundInterval:
        """For a foreground that takes ``alone`` seconds alone, and a batch of the background."""
        seconds = mean(self.turns)
        return BoundInterval(
            bound=self.bound,
            since=self.since,
            iterations=sum(map(len, self.turns)),
            iteration_time=seconds,
            slowdown=None if seconds is None else seconds / alone - 1,
            background_throughput=batch * self.work.steps / self.work.seconds if self.work.seconds else None,
        )


def divide(answers: Sequence[Message], held: Sequence[BoundResults]) -> None:
    """Gives each iteration of a round to the bound that all ranks held in it; those in between go to none."""
    rounds = len(held[0].turns)
    for one in held:
        one.turns += [[] for _ in range(rounds + 1 - len(one.turns))]
    for seconds, numbers in zip(answers[0]["times"], _numbers(answers), strict=True):
        if len(numbers) == 1:
            held[numbers.pop()].turns[-1].append(seconds)


def _numbers(answers: Sequence[Message]) -> Iterable[set[int]]:
    """Of the bounds that the ranks held, for each iteration."""
    return (set(numbers) for numbers in zip(*(answer["bounds"] for answer in answers), strict=True))


def last_measured(held: Sequence[BoundResults]) -> BoundResults:
    """The one whose numbers stand for the run: of the last bound under which anything was measured."""
    return next((one for one in reversed(held) if any(one.turns)), held[-1])


def mean(turns: Turns, left_out: range = range(0)) -> float | None:
    """Of the iterations of all rounds but some; None where there are none."""
    times = [seconds for number, turn in enumerate(turns) if number not in left_out for seconds in turn]
    return fmean(times) if times else None


def slowdown_margin(alone: Turns, beside: Turns, together: int = 1) -> float | None:
    """Half of the 95 % interval of the mean beside over the mean alone, minus 1, measured in the same rounds."""

    def without(left_out: range) -> float | None:
        by_itself, with_it = mean(alone, left_out), mean(beside, left_out)
        return None if by_itself is None or with_it is None else with_it / by_itself - 1

    return confidence_half_width(without, len(alone), together)


def harvest_margin(alone: WorkDone, beside: WorkDone, together: int = 1) -> float | None:
    """Half of the 95 % interval of the background's throughput beside the foreground over that alone."""
    # What a bound that came late had measured under it was measured in the last rounds.
    late = len(alone.phases) - len(beside.phases)

    def without(left_out: range) -> float | None:
        then = range(left_out.start - late, left_out.stop - late)
        by_itself, with_it = _throughput(alone.phases, left_out), _throughput(beside.phases, then)
        return with_it / by_itself if with_it is not None and by_itself else None

    return confidence_half_width(without, len(alone.phases), together)


def _throughput(phases: Sequence[tuple[float, float]], left_out: range) -> float | None:
    """Steps per second of all phases but some; None where there is no time."""
    kept = [phase for number, phase in enumerate(phases) if number not in left_out]
    steps, seconds = (sum(values) for values in zip(*kept, strict=True)) if kept else (0.0, 0.0)
    return steps / seconds if seconds else None

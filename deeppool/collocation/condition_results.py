"""Results of a foreground under one condition, and of its collocated iterations separated by bound."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import fmean

from deeppool.base.run_control import BoundInterval
from deeppool.collocation.background_jobs import WorkDone
from deeppool.execution.measurements import iteration_times
from deeppool.execution.typical_iteration import TypicalIteration
from deeppool.processes.managed_process import Message
from deeppool.records.confidence_interval import confidence_half_width
from deeppool.records.run_record import Phase, summarise, summarise_delays

Rounds = list[list[float]]
"""Seconds of each iteration, by round."""


@dataclass(slots=True)
class ConditionResults:
    """Results of the foreground under one condition, over all rounds."""

    rounds: Rounds = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Seconds for which each rank used its core or GPU."""
    seconds: float = 0.0
    run_delays: list[tuple[float, int]] = field(default_factory=list)
    """Delay of each iteration of each rank, as of :class:`deeppool.telemetry.run_delay.Delay`."""

    def add(self, answers: Sequence[Message]) -> None:
        """Adds one round, as each rank measured it."""
        self.rounds.append(iteration_times(answers))
        self.busy = [a + b["busy"] for a, b in zip(self.busy or [0.0] * len(answers), answers, strict=True)]
        self.seconds += max(answer["wall"] for answer in answers)
        self.run_delays += [(seconds, times) for answer in answers for seconds, times in answer["run_delays"]]

    def phase(self, batch: int, block: int = 1, rounds: Rounds | None = None) -> Phase:
        """Summarises the condition.

        Args:
            batch: global batch size.
            block: consecutive rounds treated as autocorrelated.
            rounds: the iterations to summarise. Default: all. Idle shares are always of all iterations.
        """
        rounds = self.rounds if rounds is None else rounds
        times = list(chain.from_iterable(rounds))
        idle = tuple(max(0.0, 1 - busy / self.seconds) for busy in self.busy)
        summary = replace(
            summarise(times), margin=confidence_half_width(lambda left_out: mean(rounds, left_out), len(rounds), block)
        )
        return Phase(summary, batch * len(times) / sum(times), idle, summarise_delays(self.run_delays))


@dataclass(slots=True)
class BoundResults:
    """Results of the collocated iterations under one bound; without a background, of those alone."""

    bound: float | None
    since: float
    """Seconds from the start of the measurement to when the ranks were sent the bound."""
    rounds: Rounds = field(default_factory=list)
    """Iterations in which every rank held the bound; empty in rounds before it."""
    typical: TypicalIteration = field(default_factory=TypicalIteration)
    """Of those iterations."""
    work: WorkDone = field(default_factory=WorkDone)

    def interval(self, alone: float, batch: int) -> BoundInterval:
        """Summarises the bound; ``alone`` are the foreground's seconds alone, ``batch`` a background step's samples."""
        seconds = mean(self.rounds)
        return BoundInterval(
            bound=self.bound,
            since=self.since,
            iterations=sum(map(len, self.rounds)),
            iteration_time=seconds,
            slowdown=None if seconds is None else seconds / alone - 1,
            background_throughput=batch * self.work.steps / self.work.seconds if self.work.seconds else None,
        )


def assign_to_bounds(answers: Sequence[Message], bounds: Sequence[BoundResults]) -> None:
    """Assigns each iteration of a round to the bound that all ranks held in it; without such a bound, to none.

    The work of a bound in force during the round has been measured.
    """
    count = len(bounds[0].rounds) + 1
    for bound in bounds:
        bound.rounds += [[] for _ in range(count - len(bound.rounds))]
        bound.work.end_round(count - 1)
    held = zip(iteration_times(answers), *(answer["bounds"] for answer in answers), strict=True)
    for iteration, (seconds, *numbers) in enumerate(held):
        if len(set(numbers)) == 1:
            bound = bounds[numbers[0]]
            bound.rounds[-1].append(seconds)
            bound.typical.add(answers, iteration, bound.work.spans)


def last_measured(bounds: Sequence[BoundResults]) -> BoundResults:
    """Returns the last bound with measured iterations, whose results are those of the run."""
    return next((bound for bound in reversed(bounds) if any(bound.rounds)), bounds[-1])


def mean(rounds: Rounds, left_out: range = range(0)) -> float | None:
    """Returns the mean of the iterations of all rounds but some; None where there are none."""
    kept = [seconds for number, times in enumerate(rounds) if number not in left_out for seconds in times]
    return fmean(kept) if kept else None


def slowdown_margin(alone: Rounds, collocated: Rounds, block: int = 1) -> float | None:
    """Returns the half-width of the 95 % confidence interval of the slowdown, from rounds with both conditions."""

    def without(left_out: range) -> float | None:
        base, slowed = mean(alone, left_out), mean(collocated, left_out)
        return None if base is None or slowed is None else slowed / base - 1

    return confidence_half_width(without, len(alone), block)


def harvest_margin(alone: WorkDone, collocated: WorkDone, block: int = 1) -> float | None:
    """Returns the half-width of the 95 % confidence interval of the harvest, collocated over alone throughput."""

    def without(left_out: range) -> float | None:
        base, harvested = (_throughput(work.phases, left_out) for work in (alone, collocated))
        return harvested / base if harvested is not None and base else None

    return confidence_half_width(without, len(alone.phases), block)


def _throughput(phases: Sequence[tuple[float, float]], left_out: range) -> float | None:
    """Returns the steps per second in all phases but some; None where no time was measured."""
    kept = [phase for number, phase in enumerate(phases) if number not in left_out]
    steps, seconds = (sum(values) for values in zip(*kept, strict=True)) if kept else (0.0, 0.0)
    return steps / seconds if seconds else None

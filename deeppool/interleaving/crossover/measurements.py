"""Combines the turns of all ranks into round times, costs of jobs, losses and spans."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

from deeppool.interleaving.crossover.record import ActivityKind, CrossoverSpan
from deeppool.processes.managed_process import Message

SHOWN_ROUNDS = 4
"""Rounds of a training whose spans its record keeps."""
WARM_UP = 1
"""First steps of a job in a command that its costs leave out: memory and connections are new then."""

Turn: TypeAlias = dict[str, Any]


def losses(answers: Sequence[Message]) -> dict[str, list[float]]:
    """Returns the losses of each job, step by step: the sum of all ranks' parts."""
    found: dict[str, list[float]] = defaultdict(list)
    for turns in _across_ranks(answers):
        if turns[0]["computes"]:
            found[turns[0]["job"]].append(sum(turn["loss"] for turn in turns))
    return dict(found)


def compute_times(answers: Sequence[Message]) -> dict[str, list[float]]:
    """Returns the computing of each job's steps, update included, on the slowest rank."""
    found: dict[str, list[float]] = defaultdict(list)
    for turns in _across_ranks(answers):
        # A turn with only one of the two is no whole step.
        if turns[0]["computes"] and turns[0]["settles"]:
            found[turns[0]["job"]].append(max(turn["end"] - turn["start"] for turn in turns))
    return dict(found)


def alone_compute_times(answers: Sequence[Message]) -> dict[str, list[float]]:
    """Returns the same of steps whose computing and update are two turns in a row."""
    found: dict[str, list[float]] = defaultdict(list)
    each = _across_ranks(answers)
    for computing, update in zip(each[::2], each[1::2], strict=True):
        seconds = [
            turn["end"] - turn["start"] + after["end"] - after["start"]
            for turn, after in zip(computing, update, strict=True)
        ]
        found[computing[0]["job"]].append(max(seconds))
    return dict(found)


def transfer_times(answers: Sequence[Message]) -> dict[str, list[float]]:
    """Returns the duration of each job's all-reduces, from when the last rank began until the last one had the sum."""
    found: dict[str, list[float]] = defaultdict(list)
    for turns in _across_ranks(answers):
        if turns[0]["settles"]:
            found[turns[0]["job"]].append(sum(end - start for start, end in _transfers(turns)))
    return dict(found)


def round_times(answers: Sequence[Message], jobs: int) -> list[float]:
    """Returns the durations of rounds in which as many jobs settle and compute, on the first rank."""
    rounds: dict[int, list[Turn]] = defaultdict(list)
    for turn in answers[0]["turns"]:
        rounds[turn["round"]].append(turn)
    return [
        rounds[number + 1][0]["turn"] - turns[0]["turn"]
        for number, turns in rounds.items()
        if number + 1 in rounds and len(turns) == jobs and all(turn["settles"] and turn["computes"] for turn in turns)
    ]


def spans(answers: Sequence[Message]) -> tuple[CrossoverSpan, ...]:
    """Returns what every rank did in the last rounds of a command."""
    turns = answers[0]["turns"]
    first = max(0, max((turn["round"] for turn in turns), default=0) + 1 - SHOWN_ROUNDS)
    shown = [[turn for turn in answer["turns"] if turn["round"] >= first] for answer in answers]
    origin = min((turn["start"] for taken in shown for turn in taken), default=0.0)
    found = []
    for same in zip(*shown, strict=True):
        joint = _transfers(same)
        for rank, turn in enumerate(same):
            kind: ActivityKind = "compute" if turn["computes"] else "update"
            number = turn["round"] - first
            found.append(CrossoverSpan(rank, turn["job"], kind, number, turn["start"] - origin, turn["end"] - origin))
            for began, ended in joint:
                # A transfer of before the first round shown is cut.
                if ended > origin:
                    start = max(began - origin, 0.0)
                    found.append(CrossoverSpan(rank, turn["job"], "transfer", number, start, ended - origin))
    return tuple(sorted(found, key=lambda span: (span.rank, span.start)))


def median_after_warm_up(times: Sequence[float]) -> float | None:
    """Returns the median without the first steps; None: there are no others."""
    kept = times[WARM_UP:]
    return statistics.median(kept) if kept else None


def _across_ranks(answers: Sequence[Message]) -> list[tuple[Turn, ...]]:
    """Returns each turn as all ranks took it."""
    return list(zip(*(answer["turns"] for answer in answers), strict=True))


def _transfers(turns: Sequence[Turn]) -> list[tuple[float, float]]:
    """Returns when each transfer that a turn settled began on its last rank, and ended on its last one."""
    each = zip(*(turn["transfers"] for turn in turns), strict=True)
    return [(max(began for began, _ in ranks), max(ended for _, ended in ranks)) for ranks in each]

"""Combines the measurements of all ranks into the spans of an iteration, times per stage and the governors' results.

A rank that waits for another one spends the wait inside its own transfer. All ranks of one machine share
one clock, so a transfer's span is cut where the last participant entered it: before that the rank was
idle, and the background may run.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise, product

from deeppool.base.sharing import Sharing
from deeppool.base.timeline import SpanKind
from deeppool.execution.stages import Stage
from deeppool.planning.plan import Plan
from deeppool.processes.managed_process import Message
from deeppool.records.run_record import GovernorResult, StageTimes

RankSpan = tuple[int, SpanKind, int, str, float, float]
"""Rank, then the fields of :data:`deeppool.execution.trainer.RawSpan`."""


def iteration_spans(answers: Sequence[Message], iteration: int) -> list[RankSpan]:
    """Returns the spans of all ranks in one iteration, without waits."""
    spans: list[RankSpan] = [
        (rank, kind, stage, name, start, end)
        for rank, answer in enumerate(answers)
        for kind, stage, name, start, end in answer["spans"][iteration]
    ]
    keys = _transfers(spans)
    entered: dict[tuple[SpanKind, int, str, int], float] = defaultdict(float)
    for key, (*_, start, _) in zip(keys, spans, strict=True):
        entered[key] = max(entered[key], start)
    cut = []
    for key, (rank, kind, stage, name, start, end) in zip(keys, spans, strict=True):
        last = entered[key]
        # A sender that finished before the receiver started was never waiting.
        waited = kind in ("reshard", "sync") and last < end
        cut.append((rank, kind, stage, name, max(start, last) if waited else start, end))
    return cut


def _transfers(spans: Sequence[RankSpan]) -> list[tuple[SpanKind, int, str, int]]:
    """Returns for each span the kind, stage and name that its transfer has on all ranks, and which of those it is.

    Where gradients accumulate, each batch has its own. A rank may start it and wait for it, in two spans, where another
    one has one, so the greatest common divisor of the ranks' numbers of spans is that of the transfers.
    """
    counts = Counter((kind, stage, name, rank) for rank, kind, stage, name, *_ in spans)
    transfers: dict[tuple[SpanKind, int, str], int] = defaultdict(int)
    for (kind, stage, name, _), count in counts.items():
        transfers[kind, stage, name] = math.gcd(transfers[kind, stage, name], count)
    seen: Counter[tuple[SpanKind, int, str, int]] = Counter()
    found = []
    for rank, kind, stage, name, *_ in spans:
        own = (kind, stage, name, rank)
        # Gradients are summed once, whatever the number of batches.
        number = seen[own] * transfers[kind, stage, name] // counts[own] if kind == "reshard" else 0
        seen[own] += 1
        found.append((kind, stage, name, number))
    return found


def iteration_times(answers: Sequence[Message], *, ranks_wait: bool = True) -> list[float]:
    """Returns the seconds of each iteration, from the end of the one before, for the records of runs and trainings.

    It ends when its slowest rank ends, or the first one if ranks do not wait. Ranks begin together. The controller
    takes the mean of the ranks' times (:func:`deeppool.scheduling.governor.combine`); where ways to train take turns,
    rounds need not follow each other, and each takes as long as on its slowest rank.
    """
    last = max if ranks_wait else min
    ends = [last(of_ranks) for of_ranks in zip(*(accumulate(answer["times"]) for answer in answers), strict=True)]
    return [end - before for before, end in pairwise([0.0, *ends])]


def computing_seconds(answers: Sequence[Message]) -> list[list[float | None]]:
    """Returns, by rank, how long it computed in each iteration before its collectives; None: it left it out.

    That is from the end of its last work of the iteration before to the end of the last backward, without transfers:
    reading samples, and whatever else keeps a rank from computing, counts.
    """
    found = []
    for answer in answers:
        seconds: list[float | None] = []
        before = answer["started"]
        for spans in answer["spans"]:
            ended = max((end for kind, _, _, _, end in spans if kind == "backward"), default=None)
            waited = sum(
                end - start
                for kind, _, _, start, end in spans
                if kind in ("reshard", "sync") and ended is not None and end <= ended
            )
            seconds.append(None if ended is None else max(0.0, ended - before - waited))
            before = max((end for *_, end in spans), default=before)
        found.append(seconds)
    return found


def stage_times(
    plan: Plan, stages: Sequence[Stage], answers: Sequence[Message], accumulation: int = 1
) -> tuple[StageTimes, ...]:
    """Returns, per stage, the median over iterations of its slowest rank's time per global batch."""
    seconds: dict[tuple[int, str], list[float]] = defaultdict(list)
    for iteration in range(len(answers[0]["times"])):
        totals: dict[tuple[int, SpanKind, int], float] = defaultdict(float)
        for rank, kind, stage, _, start, end in iteration_spans(answers, iteration):
            totals[stage, kind, rank] += end - start
        slowest: dict[tuple[int, str], float] = defaultdict(float)
        for (stage, kind, _), total in totals.items():
            slowest[stage, kind] = max(slowest[stage, kind], total)
        for part in product(range(len(stages)), ("forward", "backward", "reshard", "sync")):
            seconds[part].append(slowest[part] / accumulation)
    return tuple(
        StageTimes(
            name=stage.name,
            gpus=stage.layout.gpus,
            layers=len(stage.layers),
            forward=statistics.median(seconds[index, "forward"]),
            backward=statistics.median(seconds[index, "backward"]),
            reshard=statistics.median(seconds[index, "reshard"]),
            sync=statistics.median(seconds[index, "sync"]),
            predicted=sum(plan.layers[layer].time for layer in stage.layers),
        )
        for index, stage in enumerate(stages)
    )


def governor_results(sharing: Sharing | None, answers: Sequence[Message]) -> tuple[GovernorResult, ...]:
    """Returns the result of each rank's governor after its last training phase; empty without feedback or bound."""
    if sharing is None or not sharing.learns:
        return ()
    found = [answer["governor"] for answer in answers]
    return tuple(
        GovernorResult(**{**result, "banned": tuple(result["banned"])}) for result in found if result is not None
    )

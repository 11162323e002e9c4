"""How long each rank computes before it meets the others: in a synchronous training only this shows who is late.

A collective ends for all ranks at once, so the times of whole updates, and of backward passes that wait inside, are
equal on all of them.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from deeppool.units import format_seconds

NOTEWORTHY = 1.2
"""Ratio to the other ranks' median from which a rank is called a straggler."""


@dataclass(frozen=True, slots=True)
class ComputeTimes:
    """Seconds of one rank from the end of an update to its first collective of the next, transfers left out."""

    rank: int
    p50: float
    p99: float
    updates: int
    """Updates that it computed: eager-SGD lets a late rank leave some out."""
    slowest: float
    """Share of these in which no other rank computed longer."""


def compute_times(seconds: Sequence[Sequence[float | None]]) -> tuple[ComputeTimes, ...]:
    """Summarises the seconds of each rank and update; None: the rank left the update out."""
    found = []
    for rank, of_rank in enumerate(seconds):
        computed = [
            (own, max(others[update] or 0.0 for others in seconds))
            for update, own in enumerate(of_rank)
            if own is not None
        ]
        if computed:
            times = sorted(own for own, _ in computed)
            found.append(
                ComputeTimes(
                    rank=rank,
                    p50=statistics.median(times),
                    p99=times[min(len(times) - 1, int(0.99 * len(times)))],
                    updates=len(times),
                    slowest=sum(own >= longest for own, longest in computed) / len(times),
                )
            )
    return tuple(found)


def groups_alike(times: Sequence[ComputeTimes], stages: Iterable[Collection[int]]) -> list[list[ComputeTimes]]:
    """Groups ranks that compute the same stages: only their times can be compared.

    Args:
        times: of each rank.
        stages: ranks that compute each stage of the plan.
    """
    stages = list(stages)
    groups: dict[tuple[bool, ...], list[ComputeTimes]] = {}
    for each in times:
        groups.setdefault(tuple(each.rank in ranks for ranks in stages), []).append(each)
    return list(groups.values())


def straggler(times: Sequence[ComputeTimes], stages: Iterable[Collection[int]] = ()) -> str | None:
    """Returns a sentence on the rank that holds up the others; None: none does clearly.

    Args:
        times: of each rank.
        stages: as for :func:`groups_alike`. Default: all ranks compute the same.
    """
    groups = groups_alike(times, stages)
    found = None
    for group in groups:
        worst = max(group, key=lambda each: each.p50)
        if len(group) > 1:
            others = statistics.median(each.p50 for each in group if each is not worst)
            if found is None or worst.p50 - others > found[0].p50 - found[1]:
                found = worst, others, group
    if found is None:
        return None
    worst, others, compared = found
    # Lateness that is short beside what ranks with more work compute holds up nobody.
    usual = max([others, *(statistics.median(x.p50 for x in group) for group in groups if group is not compared)])
    if worst.p50 - others < (NOTEWORTHY - 1) * usual:
        return None
    whose = f"their median, and is the last one in {worst.slowest:.0%} of its updates"
    if len(groups) > 1:  # ranks with more layers are the last ones
        whose = "the median of those with the same layers"
    late = f"rank {worst.rank} computes {format_seconds(worst.p50)} before it meets the others"
    # A clock may tell nothing between an update and the next collective of ranks with little to compute.
    ratio = worst.p50 / others if others else math.inf
    return f"{late}, {ratio:.3g} times {whose}"

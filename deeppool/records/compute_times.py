"""How long each rank computes before it meets the others: in a synchronous training only this shows who is late.

A collective ends for all ranks at once, so the times of whole updates, and of backward passes that wait inside, are
equal on all of them.
"""

import statistics
from collections.abc import Sequence
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


def straggler(times: Sequence[ComputeTimes]) -> str | None:
    """Returns a sentence on the rank that holds up the others; None: none does clearly."""
    if len(times) < 2:
        return None
    worst = max(times, key=lambda each: each.p50)
    others = statistics.median(each.p50 for each in times if each is not worst)
    if worst.p50 < NOTEWORTHY * others:
        return None
    return (
        f"rank {worst.rank} computes {format_seconds(worst.p50)} before it meets the others, "
        f"{worst.p50 / others:.3g} times their median, and is the last one in {worst.slowest:.0%} of its updates"
    )

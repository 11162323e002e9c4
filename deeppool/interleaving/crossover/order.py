"""The order of turns in which jobs compute while the gradients of the others are in flight.

In its turn a job *settles* its step before, if that is still in flight: it waits for the sum of the gradients and
updates. Then it computes the next step and starts to sum its gradients, and the turn passes on. With N jobs a sum has
the computing of the N - 1 others to hide behind. A job settles before it computes again, so each trains exactly as if
it were alone: no gradient is stale, and with one job the order is that of plain synchronous SGD.

The runtime takes the turns on the wall clock, and the prediction on a virtual one.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """A job's turn in a round."""

    job: str
    round: int
    settles: bool
    """Whether it waits for the gradients of its step before, and updates."""
    computes: bool
    """Whether it computes a step and starts to sum its gradients."""


def turns(steps: Mapping[str, int], in_flight: Collection[str] = (), *, drains: bool = True) -> Iterator[Turn]:
    """Yields the turns of all jobs, round by round.

    Args:
        steps: steps that each job computes, in the order of turns; a job that has computed all of them has one more
            turn to settle the last.
        in_flight: jobs with a step that is not settled yet.
        drains: whether all steps are settled in the end; False: those of the last round stay in flight.
    """
    waiting = set(in_flight)
    for number in range(max(steps.values(), default=0) + drains):
        for job, count in steps.items():
            computes = number < count
            if not computes and job not in waiting:
                continue
            yield Turn(job, number, settles=job in waiting, computes=computes)
            waiting.discard(job)
            if computes:
                waiting.add(job)

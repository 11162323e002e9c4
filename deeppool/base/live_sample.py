"""Samples of a live run: one iteration of its foreground, with the state of its background jobs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Condition = Literal["warming up", "learning", "asleep", "awake", "collocated", "background alone"]
"""Condition that is measured. ``asleep`` and ``awake`` are the foreground alone, without and with an idle-priority
spinner on each core; ``learning`` runs both jobs as ``collocated`` does, and is not counted."""
BESIDE: tuple[Condition, ...] = ("learning", "collocated")
"""Conditions in which both jobs run."""


State = Literal["training", "resting", "ended"]


@dataclass(frozen=True, slots=True)
class BackgroundSample:
    """State of the background job on one rank, as it last reported."""

    rank: int
    state: State
    reason: str | None
    """Exit reason, or None while it runs."""
    time: float
    """Time of the report, on the clock of the samples; a training background reports twice a second."""
    steps: int
    """Steps since it started."""
    samples: int
    """Samples that it trained on since it started."""


@dataclass(frozen=True, slots=True)
class LiveSample:
    """One iteration of the foreground, or, where the foreground is idle, one report of the background."""

    time: float
    """Seconds since the run began to measure."""
    condition: Condition
    iteration: int | None
    """Number of the iteration in the run, or None if the foreground is idle."""
    seconds: float | None
    """Duration of the iteration on rank 0, in seconds, or None if the foreground is idle."""
    bound: float | None
    """Bound on the foreground's mean slowdown during the iteration: 0.03 is 3 %. None if no background was collocated,
    or it was not bounded."""
    share: float | None
    """Share of the time that rank 0's background may use in this iteration; 0 in the foreground alone. None if no
    controller limits it."""
    background: tuple[BackgroundSample, ...]
    """State of the background of each rank."""


OnSample = Callable[[LiveSample], None]
"""Callback for samples, called in the thread of the run; the launcher does not process the next iteration before it
returns."""

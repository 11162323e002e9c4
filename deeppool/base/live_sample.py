"""Samples of a live run: one iteration of its foreground, with the state of its background jobs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Condition = Literal["warming up", "learning", "asleep", "awake", "collocated", "background alone"]
"""What is measured now. ``asleep`` and ``awake`` are the foreground alone, without and with an idle-priority spinner on
each core; ``learning`` is beside the background as ``collocated`` is, and is not counted."""
BESIDE: tuple[Condition, ...] = ("learning", "collocated")
"""Conditions in which both jobs run."""


State = Literal["training", "resting", "ended"]


@dataclass(frozen=True, slots=True)
class BackgroundSample:
    """State of the background job beside one rank, as it last reported."""

    rank: int
    state: State
    reason: str | None
    """How it ended; None while it runs."""
    time: float
    """When it reported, on the clock of the samples; twice a second while it trains."""
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
    """Its number in the run; None: the foreground is idle."""
    seconds: float | None
    """Duration of the iteration; None: the foreground is idle."""
    bound: float | None
    """Bound on the foreground's mean slowdown during the iteration: 0.03 is 3 %. None: no background ran beside it, or
    it was not bounded."""
    share: float | None
    """Part of the time that rank 0's background was allowed in this iteration; 0 in the foreground alone. None: no
    controller limits it."""
    background: tuple[BackgroundSample, ...]
    """One per rank."""


OnSample = Callable[[LiveSample], None]
"""Called in the thread of the run: while it works, the launcher does not notice the next iteration."""

"""What a live run tells of itself while it goes on: an iteration of its foreground, and its background jobs by then."""

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
    """The background job beside one rank, as it last told of itself."""

    rank: int
    state: State
    reason: str | None
    """How it ended; None while it lives."""
    time: float
    """When it told, on the clock of the samples; it does so twice a second while it trains."""
    steps: int
    """Since it started."""
    samples: int
    """That it trained on since it started."""


@dataclass(frozen=True, slots=True)
class LiveSample:
    """One iteration of the foreground, or, where the foreground rests, one look at the background."""

    time: float
    """Seconds since the run began to measure."""
    condition: Condition
    iteration: int | None
    """Its number in the run; None: the foreground rests."""
    seconds: float | None
    """That the iteration took; None: the foreground rests."""
    bound: float | None
    """On the foreground's mean slowdown, that the iteration ran under: 0.03 is 3 %. None: no background ran beside it,
    or none was bound."""
    share: float | None
    """Of the time, that rank 0's background might use in this iteration; 0: nothing, as it was measured alone. None:
    nobody governs it."""
    background: tuple[BackgroundSample, ...]
    """Per rank."""


OnSample = Callable[[LiveSample], None]
"""Called in the thread of the run; what it takes, the launcher takes longer to notice the next iteration."""

"""A live run tells of itself: a sample for every iteration of the foreground, and now and then while that rests."""

import time
from collections.abc import Mapping
from typing import Any

from deeppool.base.live_sample import BESIDE, BackgroundSample, Condition, LiveSample, OnSample, State
from deeppool.collocation.background_group import BackgroundGroup, BackgroundReport
from deeppool.collocation.in_process_group import InProcessGroup


class SamplePublisher:
    """What is told to whom; belongs to the thread of the run."""

    def __init__(self, on_sample: OnSample | None, neighbours: BackgroundGroup | InProcessGroup | None) -> None:
        """Begins to count the time. Without a listener it looks at nothing, so that it costs nothing."""
        self._on_sample, self._neighbours = on_sample, neighbours
        self._began = time.perf_counter()
        self.condition: Condition = "warming up"

    @property
    def now(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self._began

    def iteration(self, told: Mapping[str, Any]) -> None:
        """A rank has made an iteration, of which it tells this much."""
        self._tell(told["step"], told["seconds"], told.get("bound"), told.get("share"))

    def look(self) -> None:
        """The foreground rests."""
        self._tell(None, None, None, None)

    def _tell(self, iteration: int | None, seconds: float | None, bound: float | None, share: float | None) -> None:
        if self._on_sample is None:
            return
        background: tuple[BackgroundSample, ...] = ()
        if self._neighbours is not None:
            self._neighbours.look()
            background = tuple(self._of(rank, told) for rank, told in sorted(self._neighbours.told.items()))
        self._on_sample(LiveSample(self.now, self.condition, iteration, seconds, bound, share, background))

    def _of(self, rank: int, told: BackgroundReport) -> BackgroundSample:
        trains = self.condition in BESIDE or self.condition == "background alone"
        state: State = "ended" if told.ended is not None else "training" if trains else "resting"
        return BackgroundSample(rank, state, told.ended, told.clock - self._began, told.steps, told.samples)

"""Publishes live samples of a run: one per iteration of the foreground, and some while the foreground rests."""

import time
from collections.abc import Mapping
from typing import Any

from deeppool.base.live_sample import BESIDE, BackgroundSample, Condition, LiveSample, OnSample, State
from deeppool.collocation.background_jobs import BackgroundJobs, BackgroundReport


class SamplePublisher:
    """Publishes live samples of a run, in the thread of the run."""

    def __init__(self, on_sample: OnSample | None, background: BackgroundJobs | None) -> None:
        """Starts the clock of the samples. Without ``on_sample`` the background is never polled."""
        self._on_sample, self._background = on_sample, background
        self._began = time.perf_counter()
        self.condition: Condition = "warming up"

    @property
    def now(self) -> float:
        """Seconds since the publisher was made."""
        return time.perf_counter() - self._began

    def publish_iteration(self, message: Mapping[str, Any]) -> None:
        """Publishes an iteration that a rank has reported."""
        self._publish(message["step"], message["seconds"], message.get("bound"), message.get("share"))

    def publish_background(self) -> None:
        """Publishes the state of the background while the foreground rests."""
        self._publish(None, None, None, None)

    def _publish(self, iteration: int | None, seconds: float | None, bound: float | None, share: float | None) -> None:
        if self._on_sample is None:
            return
        background: tuple[BackgroundSample, ...] = ()
        if self._background is not None:
            self._background.poll()
            background = tuple(self._sample(rank, report) for rank, report in sorted(self._background.reports.items()))
        self._on_sample(LiveSample(self.now, self.condition, iteration, seconds, bound, share, background))

    def _sample(self, rank: int, report: BackgroundReport) -> BackgroundSample:
        trains = self.condition in BESIDE or self.condition == "background alone"
        state: State = "ended" if report.ended is not None else "training" if trains else "resting"
        return BackgroundSample(rank, state, report.ended, report.clock - self._began, report.steps, report.samples)

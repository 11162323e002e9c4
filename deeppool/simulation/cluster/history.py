"""Recorded intervals of a simulated cluster, per GPU and for the whole cluster."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from deeppool.simulation.cluster.record import ClusterStep, GpuGroup, GpuSeconds, Interval

_State = tuple[float, int, int, float, float]
"""Start; numbers of the foreground and the background, negative for none; fractions held and harvested."""


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """Jobs of each GPU and the fractions of time that they use, as arrays over all GPUs."""

    foreground: NDArray[np.intp]
    """Number of the foreground job, negative for none."""
    background: NDArray[np.intp]
    held: NDArray[np.float64]
    """Fraction of time held by the foreground."""
    harvested: NDArray[np.float64]
    """Fraction of time used by the background alone."""


class SimulationHistory:
    """Accumulates the intervals between events."""

    def __init__(self, gpus: int) -> None:
        """Creates an empty history."""
        self.steps: list[ClusterStep] = []
        self._seconds = np.zeros((3, gpus))
        self._states: list[list[_State]] = [[] for _ in range(gpus)]
        self._last: NDArray[np.float64] | None = None

    def record(
        self, start: float, end: float, occupancy: Occupancy, *, throughput: tuple[float, float], queued: int
    ) -> None:
        """Adds an interval; ``throughput`` is that of foregrounds and of backgrounds."""
        shares = np.stack([occupancy.held, occupancy.harvested, 1 - occupancy.held - occupancy.harvested])
        self._seconds += (end - start) * shares
        held, harvested, idle = shares.sum(axis=1).tolist()
        step = ClusterStep(start, end, *throughput, held, harvested, idle, queued)
        last = self.steps[-1] if self.steps else None
        if last is not None and replace(last, end=end) == replace(step, start=last.start):
            step = replace(last, end=end)
            self.steps.pop()
        self.steps.append(step)
        state = np.stack([occupancy.foreground, occupancy.background, occupancy.held, occupancy.harvested])
        changed = np.full(state.shape[1], True) if self._last is None else np.any(state != self._last, axis=0)
        self._last = state
        for gpu in np.flatnonzero(changed).tolist():
            foreground, background, held, harvested = state[:, gpu].tolist()
            self._states[gpu].append((start, int(foreground), int(background), held, harvested))

    def gpu_seconds(self) -> GpuSeconds:
        """Sums over all GPUs and all recorded intervals."""
        held, harvested, idle = self._seconds.sum(axis=1).tolist()
        return GpuSeconds(held, harvested, idle)

    def groups(self, end: float, names: Sequence[str]) -> tuple[GpuGroup, ...]:
        """Groups GPUs with identical intervals; ``names`` are those of the jobs, by number."""
        same: dict[tuple[_State, ...], list[int]] = defaultdict(list)
        for gpu, states in enumerate(self._states):
            same[tuple(states)].append(gpu)
        return tuple(GpuGroup(tuple(gpus), _intervals(states, end, names)) for states, gpus in same.items())


def _intervals(states: Sequence[_State], end: float, names: Sequence[str]) -> tuple[Interval, ...]:
    ends = [*(state[0] for state in states[1:]), end]
    return tuple(
        Interval(
            start,
            until,
            names[foreground] if foreground >= 0 else None,
            names[background] if background >= 0 else None,
            held,
            harvested,
            1 - held - harvested,
        )
        for (start, foreground, background, held, harvested), until in zip(states, ends, strict=True)
    )

"""What a simulated cluster did: GPU by GPU, and all of them together."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from deeppool.simulation.cluster.record import ClusterStep, GpuGroup, GpuSeconds, Interval

_State = tuple[float, int, int, float, float]
"""Since when; number of the foreground and of the background, below 0 for none; parts held and harvested."""


class SimulationHistory:
    """Is told of every stretch of time between two events."""

    def __init__(self, gpus: int) -> None:
        """Nothing has happened."""
        self.steps: list[ClusterStep] = []
        self._seconds = np.zeros((3, gpus))
        self._states: list[list[_State]] = [[] for _ in range(gpus)]
        self._last: NDArray[np.float64] | None = None

    def record(
        self,
        start: float,
        end: float,
        foreground: NDArray[np.intp],
        background: NDArray[np.intp],
        held: NDArray[np.float64],
        harvested: NDArray[np.float64],
        *,
        throughput: tuple[float, float],
        queued: int,
    ) -> None:
        """Adds a stretch; arrays are over all GPUs, throughput is of foregrounds and backgrounds."""
        idle = 1 - held - harvested
        self._seconds += (end - start) * np.stack([held, harvested, idle])
        step = ClusterStep(
            start, end, *throughput, float(held.sum()), float(harvested.sum()), float(idle.sum()), queued
        )
        last = self.steps[-1] if self.steps else None
        if last is not None and replace(last, end=end) == replace(step, start=last.start):
            step = replace(last, end=end)
            self.steps.pop()
        self.steps.append(step)
        state = np.stack([foreground, background, held, harvested])
        changed = np.full(len(held), True) if self._last is None else np.any(state != self._last, axis=0)
        self._last = state
        for gpu in np.flatnonzero(changed).tolist():
            new = (start, int(foreground[gpu]), int(background[gpu]), float(held[gpu]), float(harvested[gpu]))
            self._states[gpu].append(new)

    def gpu_seconds(self) -> GpuSeconds:
        """Of all GPUs so far."""
        held, harvested, idle = self._seconds.sum(axis=1).tolist()
        return GpuSeconds(held, harvested, idle)

    def groups(self, end: float, names: Sequence[str]) -> tuple[GpuGroup, ...]:
        """GPUs that did the same, by their first one; ``names`` are the jobs' by their numbers."""
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

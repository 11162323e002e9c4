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
        """Creates a history in which nothing has run yet."""
        self.steps: list[ClusterStep] = []
        self._states: list[list[_State]] = [[(0.0, -1, -1, 0.0, 0.0)] for _ in range(gpus)]
        self._last = np.array([[-1.0], [-1.0], [0.0], [0.0]]).repeat(gpus, axis=1)
        self._seconds = [0.0, 0.0, 0.0]

    def changed(self, now: float, occupancy: Occupancy, where: NDArray[np.intp]) -> None:
        """Notes the state of GPUs from ``now`` on, where it differs from the last one."""
        columns = (occupancy.foreground, occupancy.background, occupancy.held, occupancy.harvested)
        state = np.stack([column[where] for column in columns])
        differs = np.any(state != self._last[:, where], axis=0)
        where, state = where[differs], state[:, differs]
        self._last[:, where] = state
        for gpu, foreground, background, held, harvested in zip(where.tolist(), *state.tolist(), strict=True):
            states = self._states[gpu]
            if states[-1][0] == now:
                states.pop()
            new = (int(foreground), int(background), held, harvested)
            # Two events at one time may lead back to the state before.
            if not states or states[-1][1:] != new:
                states.append((now, *new))

    def record(
        self, start: float, end: float, occupancy: Occupancy, *, throughput: tuple[float, float], queued: int
    ) -> None:
        """Adds an interval; ``throughput`` is that of foregrounds and of backgrounds."""
        held, harvested = float(occupancy.held.sum()), float(occupancy.harvested.sum())
        shares = (held, harvested, len(self._states) - held - harvested)
        for kind, share in enumerate(shares):
            self._seconds[kind] += (end - start) * share
        step = ClusterStep(start, end, *throughput, *shares, queued)
        last = self.steps[-1] if self.steps else None
        if last is not None and replace(last, end=end) == replace(step, start=last.start):
            step = replace(last, end=end)
            self.steps.pop()
        self.steps.append(step)

    def gpu_seconds(self) -> GpuSeconds:
        """Sums over all GPUs and all recorded intervals."""
        return GpuSeconds(*self._seconds)

    def groups(self, end: float, names: Sequence[str]) -> tuple[GpuGroup, ...]:
        """Groups GPUs with identical intervals; ``names`` are those of the jobs, by number."""
        same: dict[tuple[_State, ...], list[int]] = defaultdict(list)
        for gpu, states in enumerate(self._states):
            # The last event leaves a state that lasts no time.
            same[tuple(state for state in states if state[0] < end)].append(gpu)
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

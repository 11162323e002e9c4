"""Simulates how fast a training goes on with partial all-reduces: the firing rule of a run, on a virtual clock.

    times = REPORTED["ucf101-lstm"]
    found = simulate_eager_training(FiringRule(8, "majority"), times.draw, updates=1000)
    print(found)

Any load imbalance of :mod:`deeppool.collectives.partial.load_imbalance` gives the compute times, as in a run. A late
rank skips the batches of the rounds that went on without it, as ``dp.EagerSGD`` does, or computes every batch, as the
paper's ranks do. A training whose gradients are really computed can take part: its times are then simulated, and its
loss is that of these updates.
"""

import heapq
import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deeppool.base.number_checks import whole_number
from deeppool.collectives.partial.firing import FiringRule
from deeppool.collectives.partial.load_imbalance import Delays
from deeppool.collectives.partial.rounds import Firing, Rounds
from deeppool.collectives.partial.state import RoundSpec, RoundState
from deeppool.errors import InvalidValueError
from deeppool.units import format_seconds


class SimulatedTraining(Protocol):
    """A training whose updates are simulated in their order and composition: one replica, as all are equal."""

    elements: int
    """Of a gradient, in float32."""

    def gradient(self, rank: int, update: int) -> NDArray[Any]:
        """Returns the gradient of a rank's share of an update's batch, by the present parameters."""

    def update(self, total: NDArray[Any], seconds: float) -> None:
        """Updates the parameters by a round's sum; ``seconds`` is its time on the virtual clock."""


@dataclass(frozen=True, slots=True)
class EagerSimulation:
    """Simulated updates."""

    rule: FiringRule
    seconds: float
    """Until the last update."""
    counts: tuple[tuple[int, ...], ...] = field(repr=False)
    """Gradients of each rank in each round."""

    @property
    def update_time(self) -> float:
        """Mean seconds of an update."""
        return self.seconds / len(self.counts)

    @property
    def active(self) -> float:
        """Mean number of ranks that contribute to an update."""
        return float(np.mean([np.count_nonzero(counts) for counts in self.counts]))

    @property
    def gradients(self) -> int:
        """Gradients in all updates; synchronous training has one of each rank in each."""
        return sum(map(sum, self.counts))

    def __str__(self) -> str:
        share = self.gradients / (len(self.counts) * self.rule.ranks)
        return (
            f"{self.rule.mode}, {self.rule.ranks} ranks: {format_seconds(self.update_time)} an update, "
            f"{self.active:.1f} ranks in each, {100 * share:.0f} % of synchronous training's gradients (simulated)"
        )


def simulate_eager_training(
    rule: FiringRule,
    compute: Delays,
    updates: int,
    *,
    all_reduce: float = 0.0,
    skips: bool = True,
    training: SimulatedTraining | None = None,
) -> EagerSimulation:
    """Simulates some updates of a data-parallel training.

    Args:
        rule: when rounds fire.
        compute: seconds of a rank's gradient in an update, by rank and update.
        updates: rounds to simulate.
        all_reduce: seconds from the instant at which a round fires to its result on all ranks.
        skips: whether a late rank skips the batches of the rounds that went on without it.
        training: takes part with real gradients; what is left in send buffers at the end is one more update.

    Raises:
        InvalidValueError: no update, a negative all-reduce, or a gradient that never ends.
    """
    updates = whole_number("updates", updates, least=None)
    if updates < 1 or not 0 <= all_reduce < math.inf:
        raise InvalidValueError(
            f"at least 1 update is simulated, with all-reduces of 0 s or more, got {updates} and {all_reduce:g} s"
        )
    return _Simulator(rule, compute, updates, all_reduce, skips, training).run()


class _Simulator:
    def __init__(
        self,
        rule: FiringRule,
        compute: Delays,
        updates: int,
        all_reduce: float,
        skips: bool,
        training: SimulatedTraining | None,
    ) -> None:
        spec = RoundSpec(rule, 1, "int64") if training is None else RoundSpec(rule, training.elements)
        self._state = RoundState(spec, bytearray(RoundState.size(spec)))
        self._rule, self._rounds = rule, Rounds(self._state)
        self._compute, self._updates, self._all_reduce, self._skips = compute, updates, all_reduce, skips
        self._training, self._gradients = training, [np.zeros(0)] * rule.ranks
        self._step = [-1] * rule.ranks
        """Of each rank: the round that its present batch is for."""
        self._events: list[tuple[float, int]] = []
        """Times of arrivals, by rank; below 0: a look at the open round."""
        self._firing: tuple[float, Firing] | None = None
        """When the round that is being performed is complete."""
        self._waiting: set[int] = set()
        self._counts: list[tuple[int, ...]] = []

    def run(self) -> EagerSimulation:
        for rank in range(self._rule.ranks):
            self._start(rank, 0.0)
        now = 0.0
        while len(self._counts) < self._updates:
            now, rank = heapq.heappop(self._events)
            if rank >= 0:
                self._arrive(rank, now)
            if self._firing is not None and self._firing[0] <= now:
                self._complete(self._firing[1], now)
            self._fire(now)
        if self._training is not None:
            self._drain(now)
        return EagerSimulation(self._rule, now, tuple(self._counts))

    def _start(self, rank: int, now: float) -> None:
        """Lets a rank compute its next gradient."""
        self._step[rank] = int(self._state.applied[rank]) if self._skips else self._step[rank] + 1
        seconds = self._compute(rank, self._step[rank])
        if not 0 <= seconds < math.inf:
            raise InvalidValueError(
                f"a gradient takes a finite time of 0 s or more, got {seconds:g} s of rank {rank} in update "
                f"{self._step[rank]}"
            )
        heapq.heappush(self._events, (now + seconds, rank))
        if self._training is not None:
            self._gradients[rank] = self._training.gradient(rank, self._step[rank])

    def _arrive(self, rank: int, now: float) -> None:
        buffer, adds = self._rounds.begin_write(rank)
        if self._training is not None:
            buffer[...] = buffer + self._gradients[rank] if adds else self._gradients[rank]
        if self._step[rank] < self._state.applied[rank]:
            # It has received the round that this batch is for, and does not wait for the open one.
            self._rounds.end_write(rank, 1)
            self._start(rank, now)
            return
        self._rounds.arrive(rank, now)
        self._waiting.add(rank)
        self._receive(now)

    def _receive(self, now: float) -> None:
        """Lets all ranks go on that wait and have not received the newest round."""
        for rank in sorted(self._waiting):
            if self._state.applied[rank] < self._rounds.completed:
                self._rounds.received(rank, self._rounds.completed - 1)
                self._waiting.remove(rank)
                self._start(rank, now)

    def _fire(self, now: float) -> None:
        while self._firing is None:
            firing = self._rounds.fire(0, now)
            if firing is None:
                if now < (at := self._rounds.fires_at()) < math.inf:
                    heapq.heappush(self._events, (at, -1))
                return
            if firing.completes and self._all_reduce:
                self._firing = (now + self._all_reduce, firing)
                heapq.heappush(self._events, (self._firing[0], -1))
            else:
                self._complete(firing, now)

    def _complete(self, firing: Firing, now: float) -> None:
        self._firing = None
        if self._training is not None:
            firing.sum()
        self._rounds.complete(firing)
        if firing.completes:
            self._counts.append(firing.counts)
            if self._training is not None:
                self._training.update(firing.result, now)
            self._receive(now)

    def _drain(self, now: float) -> None:
        """Delivers what is left in the send buffers."""
        for rank in range(self._rule.ranks):
            self._rounds.received(rank, self._rounds.completed - 1)
            self._rounds.finish(rank)
        firing = self._rounds.fire(0, now)
        if firing is not None and self._training is not None:
            firing.sum()
            self._rounds.complete(firing)
            self._training.update(firing.result, now)

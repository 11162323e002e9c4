"""Ranks on a virtual clock: coroutines that yield the seconds they take, or wait for a change."""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from deeppool.collectives.partial.firing import FiringRule
from deeppool.collectives.partial.rounds import RoundResult, Rounds
from deeppool.collectives.partial.state import Delivery, RoundSpec, RoundState


@dataclass
class VirtualClock:
    now: float = 0.0


@dataclass
class Wait:
    """Waits for any change, but no longer than until a time."""

    until: float = math.inf


Coroutine = Generator[float | Wait, None, None]


def run(coroutines: list[Coroutine], clock: VirtualClock, fingerprint: Callable[[], bytes]) -> None:
    """Runs coroutines to their ends; fails where all that are left wait. A change of the fingerprint wakes them."""
    order = itertools.count()
    events: list[tuple[float, int, Coroutine | None]] = [(0.0, next(order), each) for each in coroutines]
    waiting: list[Coroutine] = []
    while events:
        clock.now, _, coroutine = heapq.heappop(events)
        ready, waiting = [*([coroutine] if coroutine else []), *waiting], []
        before = fingerprint()
        for each in ready:
            step = next(each, None)
            if isinstance(step, Wait):
                waiting.append(each)
                if step.until < math.inf:
                    heapq.heappush(events, (max(step.until, clock.now), next(order), None))
            elif step is not None:
                heapq.heappush(events, (clock.now + step, next(order), each))
        if fingerprint() != before:
            heapq.heappush(events, (clock.now, next(order), None))
    assert not waiting, f"deadlock: {len(waiting)} ranks wait for ever"


@dataclass
class Simulation:
    """Some steps of ranks; every gradient is 1 in an element of its own, so a sum shows what it holds."""

    rule: FiringRule
    delivery: Delivery
    steps: int
    compute: Callable[[int, int], float]
    seed: int = 0
    received: list[list[RoundResult]] = field(default_factory=list)
    completed: list[RoundResult] = field(default_factory=list)
    drained_at: int = -1
    """Rounds completed when the first rank finished."""
    ended: float = 0.0
    """When the last rank had received everything."""

    def __post_init__(self) -> None:
        spec = RoundSpec(self.rule, self.rule.ranks * self.steps, "int64", self.delivery)
        self.state = RoundState(spec, bytearray(RoundState.size(spec)))
        self.rounds = Rounds(self.state)
        self.clock, self.draw = VirtualClock(), random.Random(self.seed)
        self.received = [[] for _ in range(self.rule.ranks)]
        run([self._rank(rank) for rank in range(self.rule.ranks)], self.clock, self._fingerprint)

    def _fingerprint(self) -> bytes:
        state = self.state
        return b"".join(
            part.tobytes() for part in (state.completed, state.performer, state.joined, state.applied, state.finished)
        )

    def _rank(self, rank: int) -> Coroutine:
        for step in range(self.steps):
            yield self.compute(rank, step)
            buffer, adds = self.rounds.begin_write(rank)
            yield self.draw.expovariate(1e4)
            if not adds:
                buffer[...] = 0
            buffer[rank * self.steps + step] += 1
            self.rounds.arrive(rank, self.clock.now)
            yield from self._perform(rank)
            yield from self._receive(rank)
        if self.drained_at < 0:
            self.drained_at = self.rounds.completed
        self.rounds.finish(rank)
        yield from self._perform(rank)
        while not self.rounds.closed or self.rounds.unread(rank):
            yield from self._receive(rank)
            yield from self._perform(rank)
        self.ended = self.clock.now

    def _perform(self, rank: int) -> Coroutine:
        while (firing := self.rounds.fire(rank, self.clock.now)) is not None:
            yield self.draw.expovariate(1e3)
            firing.sum()
            if firing.completes:
                self.completed.append(RoundResult(firing.number, firing.counts, firing.result.copy()))
            self.rounds.complete(firing)

    def _receive(self, rank: int) -> Coroutine:
        while not (slots := self.rounds.unread(rank)):
            if self.rounds.closed:
                return
            at = self.rounds.fires_at()
            if at <= self.clock.now:
                yield from self._perform(rank)
                continue
            yield Wait(at)
        results = [result for slot in slots if (result := self.rounds.read(slot)) is not None]
        self.rounds.received(rank, results[-1].number)
        self.received[rank] += results

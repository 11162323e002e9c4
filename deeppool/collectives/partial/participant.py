"""One rank of a partial all-reduce between hosts: a state machine of messages.

    submit ─► arrival ─► (the round fires) ─► activation of all ranks ─► all-reduce by a schedule ─► result

The rank that fires a round activates all others by a broadcast, and every rank that is activated takes its send buffer
and performs its steps of the schedule, whether its training has arrived or not. Rounds that wait for all ranks need no
activation: each rank starts at its own arrival. Which rounds these are follows from the results before, so all ranks
agree. A message for a later round waits until the rounds before it are complete.

Whoever drives a participant calls it with the time, under one lock, and delivers what is in ``outbox``; messages of a
pair of ranks arrive in their order.
"""

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deeppool.collectives.partial.activation import Activation
from deeppool.collectives.partial.rounds import RoundResult
from deeppool.collectives.partial.state import RoundSpec
from deeppool.collectives.patterns.recursive_doubling import recursive_doubling

Numbers = NDArray[np.int64]
Vector = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """A partial sum, and what is in it."""

    counts: Numbers
    """Gradients of each rank."""
    finished: Numbers
    """Of each rank: whether it has finished."""
    total: Vector | None
    """None: it holds no gradient, and travels as an empty message."""

    def plus(self, other: "Contribution") -> "Contribution":
        """Returns the sum; leaves both as they are, as they may still have to be sent."""
        if self.total is None or other.total is None:
            total = other.total if self.total is None else self.total
        else:
            total = self.total + other.total
        return Contribution(self.counts + other.counts, self.finished + other.finished, total)


@dataclass(frozen=True, slots=True)
class PartialMessage:
    """A message between two participants."""

    kind: Literal["arrival", "activation", "data"]
    number: int
    """Of the round."""
    dimension: int = 0
    """Of an activation; of data that is a chunk, its position."""
    contribution: Contribution | None = None
    """Of data."""


class Participant:
    """The state of one rank."""

    def __init__(self, rank: int, spec: RoundSpec) -> None:
        """Starts with the first round open."""
        self.rank, self.rule, self._delivery = rank, (rule := spec.rule), spec.delivery
        self._empty = np.zeros(spec.elements, spec.dtype)
        self._steps = [step for step in recursive_doubling(rule.ranks).steps if step.rank == rank]
        self.outbox: list[tuple[int, PartialMessage]] = []
        """Messages to send, with their destinations."""
        self.unread: deque[RoundResult] = deque()
        """Results that the training has not received."""
        self.completed = 0
        """Completed rounds; also the number of the open one."""
        self.pending: Vector | None = None
        """Sum of this rank's gradients that no round has taken."""
        self.pending_count = 0
        self.finished = False
        """Whether this rank will add no more gradients."""
        self.closed = False
        """Whether all ranks have finished, and all gradients are delivered."""
        self.applied = 0
        """Rounds that the training has received."""
        self._taken = np.zeros(rule.ranks, np.int64)
        self._gone = np.zeros(rule.ranks, np.int64)
        self._data: dict[int, dict[int, deque[Contribution]]] = defaultdict(lambda: defaultdict(deque))
        self._heard: dict[int, list[int]] = defaultdict(list)
        self._arrivals: dict[int, dict[int, float]] = defaultdict(dict)
        self._open()

    def submit(self, gradient: Vector, now: float) -> None:
        """Adds a gradient; waits for the open round if the training has received all others."""
        self.add(gradient, 1)
        if not self.unread:
            self._arrive(now)

    def add(self, gradients: Vector, count: int) -> None:
        """Adds a sum of some gradients to the send buffer."""
        self.pending = gradients.copy() if self.pending is None else self.pending + gradients
        self.pending_count += count

    def finish(self, now: float) -> None:
        """Announces that no gradient follows."""
        self.finished = True
        self._arrive(now)

    def receive(self, source: int, message: PartialMessage, now: float) -> None:
        """Takes a message."""
        number = message.number
        if number < self.completed or self.closed:
            return
        if message.kind == "data":
            assert message.contribution is not None, "data has a contribution"
            self._data[number][source].append(message.contribution)
        elif message.kind == "activation":
            self._heard[number].append(message.dimension)
        else:
            self._arrivals[number][source] = now
        self.advance(now)

    def results(self) -> list[RoundResult]:
        """Returns what the training has to apply, and counts it as received."""
        found = list(self.unread)
        self.unread.clear()
        if found:
            self.applied = found[-1].number + 1
        return found

    @property
    def accepted(self) -> bool:
        """Whether the results that the training has received hold all gradients of this rank."""
        return self.pending is None and int(self._taken[self.rank]) <= self.applied and not self._own_count

    def elements_of(self, chunk: int) -> int:
        """Returns the elements of the data of a message."""
        return len(self._empty)

    def fires_at(self) -> float:
        """Returns when the open round fires by this rank's clock if no message arrives; infinity: it does not."""
        if self._active or self.closed:
            return math.inf
        if self._synchronous:
            return -math.inf if self._arrived or self.finished else math.inf
        arrivals: Mapping[int, float] = self._arrivals[self.completed]
        return self.rule.fires_at(self.completed, arrivals, synchronous=False, members=self.rule.ranks)

    def advance(self, now: float) -> None:
        """Does all that can be done now."""
        while not self.closed:
            if not self._active and self.fires_at() <= now:
                self._activate()
                if not self._synchronous:
                    self._forward(-1)
            for dimension in self._heard.pop(self.completed, ()):
                self._activate()
                self._forward(dimension)
            if not self._active or not self._perform():
                return
            self._complete(now)

    def _open(self) -> None:
        """Starts to wait for the next round."""
        self._active = self._arrived = False
        self._held: Contribution | None = None
        self._own_count = 0
        self._done = 0
        self._activation = Activation(self.rank, self.rule.ranks)
        missed = (self.completed - self._taken).tolist()
        self._synchronous = bool(self._gone.any()) or self.rule.is_synchronous(self.completed, missed)

    def _arrive(self, now: float) -> None:
        self._arrived, number = True, self.completed
        coordinator = self._coordinator(number)
        if coordinator == self.rank:
            self._arrivals[number][self.rank] = now
        elif not self._synchronous and (self.rule.mode != "majority" or self.rule.grace):
            self.outbox.append((coordinator, PartialMessage("arrival", number)))
        self.advance(now)

    def _coordinator(self, number: int) -> int:
        """Returns the rank that counts the arrivals of a round; its training need not have arrived."""
        if self.rule.mode == "majority":
            return self.rule.initiator(number)
        return self.rank if self.rule.mode == "solo" and not self.rule.grace else number % self.rule.ranks

    def _activate(self) -> None:
        """Takes the send buffer as this rank's contribution."""
        if self._active:
            return
        self._active = True
        counts, finished = np.zeros(self.rule.ranks, np.int64), np.zeros(self.rule.ranks, np.int64)
        counts[self.rank], finished[self.rank] = self.pending_count, self.finished
        self._held = Contribution(counts, finished, self.pending)
        self._own_count = self.pending_count
        self.pending, self.pending_count = None, 0

    def _forward(self, dimension: int) -> None:
        for destination, on in self._activation.hear(dimension):
            self.outbox.append((destination, PartialMessage("activation", self.completed, on)))

    def _perform(self) -> bool:
        """Performs steps of the schedule, in order, as far as messages have arrived; returns whether all are done."""
        assert self._held is not None, "an active round has a contribution"
        data = self._data[self.completed]
        while self._done < len(self._steps):
            step = self._steps[self._done]
            if step.kind == "send":
                self.outbox.append((step.peer, PartialMessage("data", self.completed, contribution=self._held)))
            elif not data[step.peer]:
                return False
            else:
                arrived = data[step.peer].popleft()
                self._held = self._held.plus(arrived) if step.kind == "reduce" else arrived
            self._done += 1
        return True

    def _complete(self, now: float) -> None:
        """Publishes the result, and opens the next round."""
        assert self._held is not None, "a complete round has a sum"
        held, number = self._held, self.completed
        # A copy: what the training does to the result must not change what is still to be sent.
        total = (self._empty if held.total is None else held.total).copy()
        if self._delivery == "latest" and not self.finished:
            self.unread.clear()
        self.unread.append(RoundResult(number, tuple(held.counts.tolist()), total))
        self._taken[held.counts > 0] = number + 1
        self._gone = held.finished
        # A rank that has finished is missed by nobody.
        self._taken[held.finished > 0] = number + 1
        for waiting in (self._data, self._arrivals):
            waiting.pop(number, None)
        self.completed += 1
        self.closed = bool(held.finished.all())
        self._open()
        if self.finished and not self._gone[self.rank]:
            self._arrive(now)

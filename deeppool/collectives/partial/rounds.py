"""Rounds of a partial all-reduce over a state that all ranks see.

    begin_write ─► (the rank writes its gradient) ─► arrive ─► fire ─► (the performer sums) ─► complete ─► receive

Operations up to complete are called under one lock; writing, summing and reading results happen outside it. A rank adds
a gradient to its send buffer, then arrives. If rounds were completed since it last received results, it receives those
and does not wait: its gradient stays in the send buffer, and whatever it adds later goes with it. Otherwise it waits
for the open round. Whoever sees that this fires performs it: takes all send buffers at once, sums them, publishes. The
late ranks' threads are not needed, nor is a thread beside them.

With mode ``straggler-aware`` a round fires twice: when all but one rank have arrived, their gradients are summed while
they wait, so that the last one only adds its own.

Ranks that finish add no more. From the first one on, rounds wait for all that have not finished, and the last one to
finish delivers what is left, so that no gradient is lost.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deeppool.collectives.partial.state import RoundState


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The sum of one round."""

    number: int
    """Of the round, from 0."""
    counts: tuple[int, ...]
    """Gradients of each rank in the sum; 0: the rank's contribution was null."""
    total: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Firing:
    """A round to be performed: what it takes, and where the sum goes."""

    number: int
    slot: int
    counts: tuple[int, ...]
    buffers: tuple[NDArray[Any], ...]
    result: NDArray[Any]
    adds: bool
    """Whether the result holds the sum of those who waited for the last rank."""
    completes: bool
    """Whether no rank is missing."""

    def sum(self) -> None:
        """Sums the send buffers that hold gradients, in the order of ranks."""
        total, buffers = self.result, self.buffers
        if not self.adds:
            total[...] = buffers[0] if buffers else 0
            buffers = buffers[1:]
        for buffer in buffers:
            total += buffer


class Rounds:
    """The operations of all ranks on one state, under the caller's lock."""

    def __init__(self, state: RoundState) -> None:
        """Takes the state."""
        self.rule, self.delivery, self.state = state.spec.rule, state.spec.delivery, state

    @property
    def completed(self) -> int:
        """Completed rounds; also the number of the open one."""
        return int(self.state.completed[0])

    @property
    def closed(self) -> bool:
        """Whether all ranks have finished, and no gradient is left."""
        return self._all_finished and not self.state.performer[0] and not self.state.pending.any()

    @property
    def _all_finished(self) -> bool:
        return bool(self.state.finished.all())

    def begin_write(self, rank: int) -> tuple[NDArray[Any], bool]:
        """Returns the send buffer of a rank, and whether it holds gradients to add to; no round takes it meanwhile."""
        state = self.state
        state.writing[rank] = 1
        return state.sends[rank, state.active[rank]], bool(state.pending[rank])

    def end_write(self, rank: int, count: int) -> None:
        """Records that a rank has added some gradients to its send buffer."""
        self.state.writing[rank] = 0
        self.state.pending[rank] += count

    def arrive(self, rank: int, now: float) -> None:
        """Records that a rank has added a gradient, and that it waits for the open round if it has seen all others."""
        state = self.state
        self.end_write(rank, 1)
        if state.applied[rank] == state.completed[0]:
            state.joined[rank], state.arrived[rank] = state.completed[0] + 1, now

    def finish(self, rank: int) -> None:
        """Records that a rank will add no more gradients."""
        self.state.finished[rank] = 1

    def fires_at(self) -> float:
        """Returns when the open round fires if nobody else arrives; infinity: it does not."""
        state = self.state
        if state.performer[0] or self._free_slot() is None:
            return math.inf
        if (state.applied[state.finished == 1] < state.completed[0]).any():
            # A rank that has finished receives every round, also of ``latest``: it is there to do so.
            return math.inf
        if self._all_finished:
            return -math.inf if state.pending.any() else math.inf
        number, arrivals = self.completed, self._arrivals()
        if self._waits_for_one(arrivals):
            return -math.inf
        members = np.flatnonzero(state.finished == 0)
        missed = number - state.taken[members]
        synchronous = len(members) < self.rule.ranks or self.rule.is_synchronous(number, missed.tolist())
        return self.rule.fires_at(number, arrivals, synchronous=synchronous, members=len(members))

    def fire(self, rank: int, now: float) -> Firing | None:
        """Returns the open round if it fires now, for this rank to perform; takes all send buffers."""
        if self.fires_at() > now:
            return None
        state, slot = self.state, self._free_slot()
        assert slot is not None, "a round fires only into a free slot"
        adds, completes = bool(state.early[0]), not self._waits_for_one(self._arrivals())
        state.performer[0] = rank + 1
        ready = (state.pending > 0) & (state.writing == 0)
        counts = np.where(ready, state.pending, 0) + (state.counts[slot] if adds else 0)
        buffers = tuple(state.sends[other, state.active[other]] for other in np.flatnonzero(ready))
        state.active[ready] ^= 1
        # Before ``pending``: a rank reads both without the lock.
        state.taken[ready] = state.completed[0] + 1
        state.pending[ready] = 0
        # Whoever still copies the slot's old result sees that it has gone.
        state.numbers[slot] = 0
        return Firing(self.completed, slot, tuple(counts.tolist()), buffers, state.results[slot], adds, completes)

    def complete(self, firing: Firing) -> None:
        """Publishes the sum of a round, and opens the next; keeps the sum of those who wait for the last rank."""
        state = self.state
        state.counts[firing.slot] = firing.counts
        state.early[0] = 0 if firing.completes else firing.slot + 1
        if not firing.completes:
            state.performer[0] = 0
            return
        state.numbers[firing.slot] = firing.number + 1
        state.completed[0] += 1
        state.performer[0] = 0

    def unread(self, rank: int) -> list[int]:
        """Returns the slots that a rank has to read, in the order of rounds; needs no lock."""
        state, completed = self.state, self.completed
        if state.applied[rank] >= completed:
            return []
        first = completed - 1 if self.delivery == "latest" else state.applied[rank]
        slots = np.flatnonzero((state.numbers > first) & (state.numbers <= completed))
        return [int(slot) for slot in slots[np.argsort(state.numbers[slots])]]

    def read(self, slot: int) -> RoundResult | None:
        """Copies a result; needs no lock. None: it was overwritten meanwhile, which only ``latest`` does."""
        state = self.state
        number, counts = int(state.numbers[slot]), tuple(state.counts[slot].tolist())
        total = state.results[slot].copy()
        return RoundResult(number - 1, counts, total) if number and state.numbers[slot] == number else None

    def accepted(self, rank: int) -> bool:
        """Returns whether the results that a rank has received hold all its gradients; needs no lock."""
        state = self.state
        return not state.pending[rank] and bool(state.taken[rank] <= state.applied[rank])

    def received(self, rank: int, number: int) -> bool:
        """Records the last round whose result a rank has received; needs no lock.

        Returns:
            Whether the open round may have waited for this: of ``log`` no slot was free.
        """
        state, before = self.state, int(self.state.applied[rank])
        state.applied[rank] = number + 1
        return self.delivery == "log" and bool((state.numbers > before).all())

    def _arrivals(self) -> dict[int, float]:
        """Returns when each rank arrived that waits for the open round."""
        state, number = self.state, self.completed
        waiting = np.flatnonzero((state.finished == 0) & (state.joined == number + 1))
        return {int(rank): float(state.arrived[rank]) for rank in waiting}

    def _waits_for_one(self, arrivals: dict[int, float]) -> bool:
        """Returns whether those who have arrived have time to sum their gradients, and have not done so."""
        aware = self.rule.mode == "straggler-aware" and not self.state.finished.any() and not self.state.early[0]
        return aware and 1 <= len(arrivals) == self.rule.ranks - 1

    def _free_slot(self) -> int | None:
        """Returns the first slot that no rank has to read, so that memory is used as the ranks' lag needs it."""
        state = self.state
        if state.early[0]:
            return int(state.early[0]) - 1
        if self.delivery == "latest":
            return int(np.argmin(state.numbers))
        free = np.flatnonzero(state.numbers <= state.applied.min())
        return int(free[0]) if len(free) else None

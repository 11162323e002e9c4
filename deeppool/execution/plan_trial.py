"""Plans of transfers tried by turns during training, until one is left: the same on all ranks.

    round   every plan that is left, in turn: one update that does not count, as it finds no transfers under way, and
            some that are measured
    end     the sum over ranks of all times, and with it the same times on each; the faster half goes on

Half of the plans leave after each round, so that most updates measure those that are hard to tell apart (sequential
halving: Karnin, Koren and Somekh, ICML 2013). Training is the same by each of them.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from deeppool.device.protocol import Device
from deeppool.errors import InvalidValueError
from deeppool.records.transfer_plan import TransferPlan, TriedPlan

Agree = Callable[[list[float]], list[float]]
"""Returns the mean over all ranks of some numbers; all ranks call it, and get the same bits."""


class PlanTrial:
    """Trial of some plans; all ranks make the same calls."""

    def __init__(self, plans: Sequence[TransferPlan], updates: int, agree: Agree) -> None:
        """Starts with the first plan.

        Args:
            plans: different ones; of equally fast ones the first is kept.
            updates: measured updates of a turn. 0: the first plan is kept without a trial.
            agree: means over the ranks.

        Raises:
            InvalidValueError: there is no plan.
        """
        if not plans:
            raise InvalidValueError("there is no plan of transfers to try (give one or more)")
        self.plan = plans[0]
        """The plan to perform now."""
        self._plans, self._updates, self._agree = plans, updates, agree
        self._left = list(range(len(plans))) if updates else [0]
        """Plans of the round, by position."""
        self._turn = 0
        self._last: float | None = None
        """End of the last update of the turn."""
        self._own: list[float] = []
        """This rank's times of the round, turn after turn."""
        self._seconds: list[list[float]] = [[] for _ in plans]
        """Times on which all ranks agree."""

    @property
    def running(self) -> bool:
        """Whether more than one plan is left."""
        return len(self._left) > 1

    def count_update(self, device: Device, drain: Callable[[], None], perform: Callable[[TransferPlan], None]) -> None:
        """Counts an update by the plan, and changes to another one where it is another's turn.

        Args:
            device: the update is what its current stream has computed.
            drain: completes the update that is under way.
            perform: replaces the plan that is performed.
        """
        if self.running:
            device.synchronize_stream()
            if self.ends_turn(time.perf_counter()):
                drain()
                perform(self.advance())

    def ends_turn(self, now: float) -> bool:
        """Counts an update by the plan; returns whether :meth:`advance` is to be called before the next one."""
        if not self.running:
            return False
        if self._last is not None:
            self._own.append(now - self._last)
        self._last = now
        return len(self._own) == self._updates * (self._turn + 1)

    def advance(self) -> TransferPlan:
        """Goes on to the next turn, and after the last of a round to the next round; returns the plan to perform."""
        self._last = None
        self._turn += 1
        if self._turn == len(self._left):
            self._end_round()
        if self.running:
            self.plan = self._plans[self._left[self._turn]]
        return self.plan

    def _end_round(self) -> None:
        agreed = self._agree(self._own)
        for turn, position in enumerate(self._left):
            self._seconds[position] += agreed[turn * self._updates : (turn + 1) * self._updates]
        tried = {position: self._tried(position) for position in range(len(self._plans))}
        ranked = sorted(self._left, key=lambda position: (tried[position].typical, position))
        self._left = sorted(ranked[: math.ceil(len(ranked) / 2)])
        self._own, self._turn = [], 0
        if not self.running:
            (kept,) = self._left
            others = sorted(tried.keys() - {kept}, key=lambda position: tried[position].typical)
            self.plan = replace(self._plans[kept], tried=tuple(tried[position] for position in (kept, *others)))

    def _tried(self, position: int) -> TriedPlan:
        plan = self._plans[position]
        return TriedPlan(
            transfers=len(plan.transfers),
            patterns=plan.patterns,
            size_bound=plan.size_bound,
            predicted=plan.iteration_time,
            seconds=tuple(self._seconds[position]),
        )

"""Earliest times at which one rank of a plan may start its work, while all others take the predicted times.

The plan's schedule has sums and maxima only, so each of its times is the latest of a few earlier ones, each with a
number of seconds after it (max-plus algebra: Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992).
Here the earlier ones are what happens on one rank: the start of the iteration, and the ends of what it computed.
They are found once; in an iteration each costs a handful of additions.

What all-reduces beside a backward take of its core counts as planned, on this rank as a wait after its stage.

Ranks that compute a stage together with this one take as long: their shards are as large. So if this rank's own
stages take exactly the predicted time, so does the iteration; and what slows them slows it by the plan's schedule.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

from deeppool.base.timeline import SpanKind
from deeppool.execution.stages import Stage
from deeppool.planning.evaluate.gpu_sets import GpuSet, share_gpus
from deeppool.planning.evaluate.schedule import Order, order_of, parameter_gpus
from deeppool.planning.plan import Plan

Event = tuple[SpanKind, int]
"""The end of a stage's forward or backward on this rank."""
START: Event = ("idle", 0)
"""The start of the iteration."""
EventTime = Mapping[Event, float]
"""Latest of some events, each plus a number of seconds."""


class TransferTimes(NamedTuple):
    """Times at which this rank may start something."""

    start: EventTime
    """Start of the transfers, once the other ranks have reached it too."""
    end: EventTime
    """End of the transfers."""


@dataclass(frozen=True, slots=True)
class ReplaySchedule:
    """Schedule of one rank in one iteration."""

    computations: Mapping[Event, TransferTimes]
    """Start times of its stages' forwards and backwards, in its order."""
    all_reduces: Mapping[int, TransferTimes]
    """Start and end of each all-reduce in which this rank takes part, by stage."""
    end: EventTime
    """End of the iteration, for all ranks: of the longest update, if updates take the predicted time."""


def replay_schedule(plan: Plan, stages: Sequence[Stage], rank: int) -> ReplaySchedule:
    """Returns the replay schedule of a rank.

    Args:
        plan: plan that all ranks run.
        stages: stages of the plan.
        rank: the rank to schedule.
    """
    return _ScheduleBuilder(plan, stages, rank).build()


class _ScheduleBuilder:
    """Walks through the plan's schedule, forward and backward, as :mod:`deeppool.planning.evaluate.schedule` does."""

    def __init__(self, plan: Plan, stages: Sequence[Stage], rank: int) -> None:
        self._plan, self._rank = plan, rank
        times = plan.schedule
        self._backwards = [end - start for start, end in zip(times.backward, times.computed, strict=True)]
        """Planned seconds of each layer's backward, with what all-reduces beside it take of its core."""
        self._sent = [end - start for start, end in zip(times.gradients, times.sent, strict=True)]
        self._stage = {layer: index for index, stage in enumerate(stages) for layer in stage.layers}
        self._computations: dict[Event, TransferTimes] = {}
        self._all_reduces: dict[int, TransferTimes] = {}
        self._channels: dict[GpuSet, EventTime] = {}
        """Per set of GPUs, when its all-reduces so far have ended."""
        self._ends: dict[GpuSet, EventTime] = {}
        """Per set of GPUs, the end of its last backward so far."""

    def build(self) -> ReplaySchedule:
        order = order_of(self._plan.tree, self._plan.gpu_sets)
        forward = self._forward(order, {START: 0.0})
        last = self._backward(order, TransferTimes(forward, forward))
        passes = latest([last.end, *self._channels.values()])
        return ReplaySchedule(self._computations, self._all_reduces, after(passes, self._plan.update_time))

    def _forward(self, order: Order, now: EventTime) -> EventTime:
        for step in self._steps(order):
            if isinstance(step, tuple):
                now = latest([self._forward(lane, now) for lane in step])
                continue
            layers = [self._plan.layers[layer] for layer in step]
            arrived = after(now, sum(layer.reshard for layer in layers) / 2)
            if self._rank in layers[0].gpus:
                event: Event = ("forward", self._stage[step[0]])
                self._computations[event] = TransferTimes(now, arrived)
                now = {event: 0.0}
            else:
                now = after(arrived, sum(layer.forward for layer in layers))
        return now

    def _backward(self, order: Order, turn: TransferTimes) -> TransferTimes:
        for step in reversed(list(self._steps(order))):
            if isinstance(step, tuple):
                # Last the branch whose layers are the first that use their parameters.
                lanes = [self._backward(lane, turn) for lane in reversed(step)]
                turn = TransferTimes(latest([lane.start for lane in lanes]), latest([lane.end for lane in lanes]))
                continue
            layers = step[::-1]
            total = sum(self._backwards[layer] for layer in layers)
            computed = after(turn.end, total)
            if self._rank in self._plan.layers[step[0]].gpus:
                event: Event = ("backward", self._stage[step[0]])
                self._computations[event] = turn
                # No all-reduce runs here that could slow the rank down: it waits instead.
                computed = {event: total - sum(self._plan.layers[layer].backward for layer in layers)}
            summed = self._all_reduce(layers, after(computed, -total))
            done = computed if self._plan.overlap_sync else summed
            turn = TransferTimes(done, after(done, sum(self._sent[layer] for layer in layers)))
        return turn

    def _all_reduce(self, indices: Sequence[int], began: EventTime) -> EventTime:
        """Adds the all-reduces of a stage's layers, in the order of their backwards; returns the last end."""
        stage, layers = self._stage[indices[0]], [self._plan.layers[index] for index in indices]
        overlap, taking_part = self._plan.overlap_sync, False
        done = list(accumulate(self._backwards[index] for index in indices))
        moved = list(accumulate((self._sent[index] for index in indices), initial=0.0))
        free, transfer_start = after(began, done[-1]), None
        for index, layer, computed, before in zip(indices, layers, done, moved, strict=False):
            ready = self._ends[layer.gpus] = after(began, computed + before)
            if layer.all_reduce > 0:
                gpus = parameter_gpus(index, self._plan.gpu_sets, self._plan.layers)
                if gpus != layer.gpus:
                    ready = latest([end for others, end in self._ends.items() if share_gpus(others, gpus)])
                ready = ready if overlap else free
                transfer_start = latest(
                    [ready, *(x for others, x in self._channels.items() if share_gpus(others, gpus))]
                )
                self._channels[gpus] = free = after(transfer_start, layer.all_reduce)
                taking_part |= self._rank in gpus
        if transfer_start is not None and taking_part:
            self._all_reduces[stage] = TransferTimes(transfer_start, free)
        return free

    def _steps(self, order: Order) -> "Iterator[list[int] | tuple[Order, ...]]":
        """Yields the layers of one stage together, and branches that run side by side."""
        for _, group in groupby(order, lambda step: self._stage[step] if isinstance(step, int) else step):
            steps = list(group)
            layers = [step for step in steps if isinstance(step, int)]
            yield layers if layers else steps[0]  # type: ignore[misc]


def after(moment: EventTime, seconds: float) -> EventTime:
    """Returns a time some seconds later."""
    return {event: delay + seconds for event, delay in moment.items()}


def latest(moments: Iterable[EventTime]) -> EventTime:
    """Returns the latest of some times."""
    found: dict[Event, float] = {}
    for moment in moments:
        for event, delay in moment.items():
            found[event] = max(delay, found.get(event, delay))
    return found

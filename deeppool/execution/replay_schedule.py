"""When one rank of a plan may go on, while all others take the times that the plan predicts.

The plan's schedule knows sums and maxima only, so each of its times is the latest of a few earlier ones, each with a
number of seconds after it (max-plus algebra: Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992).
Here the earlier ones are what happens on one rank: the start of the iteration, and the ends of what it computed.
They are found once; in an iteration a look at each is a handful of additions.

Ranks that compute a stage together with this one keep step with it: their shards are as large. So if this rank's own
stages take exactly the predicted time, so does the iteration; and what slows them slows it as the plan's schedule says.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

from deeppool.base.timeline import SpanKind
from deeppool.execution.stages import Stage
from deeppool.planning.evaluate.schedule import Order, order_of
from deeppool.planning.layer_assignment import LayerAssignment
from deeppool.planning.plan import Plan
from deeppool.planning.search.gpu_partition import GpuSet, share_gpus

Event = tuple[SpanKind, int]
"""The end of a stage's forward or backward on this rank."""
START: Event = ("idle", 0)
"""The start of the iteration."""
Moment = Mapping[Event, float]
"""The latest of some events, each and so many seconds."""


class TurnTimes(NamedTuple):
    """When this rank may begin something."""

    met: Moment
    """The others have begun it too: transfers start."""
    go: Moment
    """Transfers have ended."""


@dataclass(frozen=True, slots=True)
class ReplaySchedule:
    """Of one rank in one iteration."""

    turns: Mapping[Event, TurnTimes]
    """Of its stages' forwards and backwards, in its order."""
    sums: Mapping[int, TurnTimes]
    """Per stage whose gradients it sums up with others: ``go`` is when they are there."""
    end: Moment
    """Of the iteration, for all ranks."""


def replay_schedule(plan: Plan, stages: Sequence[Stage], rank: int) -> ReplaySchedule:
    """The turns of a rank.

    Args:
        plan: what all ranks run.
        stages: the plan's.
        rank: whose turns.
    """
    return _Walk(plan, stages, rank).turns()


class _Walk:
    """Through the plan's schedule, forward and backward, as ``planning.schedule`` goes."""

    def __init__(self, plan: Plan, stages: Sequence[Stage], rank: int) -> None:
        self._plan, self._rank = plan, rank
        self._stage = {layer: index for index, stage in enumerate(stages) for layer in stage.layers}
        self._turns: dict[Event, TurnTimes] = {}
        self._sums: dict[int, TurnTimes] = {}
        self._channels: dict[GpuSet, Moment] = {}
        """Per set of GPUs, when its all-reduces so far have ended."""

    def turns(self) -> ReplaySchedule:
        order = order_of(self._plan.tree, self._plan.gpu_sets)
        forward = self._forward(order, {START: 0.0})
        last = self._backward(order, TurnTimes(forward, forward))
        return ReplaySchedule(self._turns, self._sums, latest([last.go, *self._channels.values()]))

    def _forward(self, order: Order, now: Moment) -> Moment:
        for step in self._steps(order):
            if isinstance(step, tuple):
                now = latest([self._forward(lane, now) for lane in step])
                continue
            layers = [self._plan.layers[layer] for layer in step]
            arrived = after(now, sum(layer.reshard for layer in layers) / 2)
            if self._rank in layers[0].gpus:
                event: Event = ("forward", self._stage[step[0]])
                self._turns[event] = TurnTimes(now, arrived)
                now = {event: 0.0}
            else:
                now = after(arrived, sum(layer.forward for layer in layers))
        return now

    def _backward(self, order: Order, turn: TurnTimes) -> TurnTimes:
        for step in reversed(list(self._steps(order))):
            if isinstance(step, tuple):
                lanes = [self._backward(lane, turn) for lane in step]
                turn = TurnTimes(latest([lane.met for lane in lanes]), latest([lane.go for lane in lanes]))
                continue
            layers = [self._plan.layers[layer] for layer in reversed(step)]
            total = sum(layer.backward for layer in layers)
            computed = after(turn.go, total)
            if self._rank in layers[0].gpus:
                event: Event = ("backward", self._stage[step[0]])
                self._turns[event] = turn
                computed = {event: 0.0}
            summed = self._all_reduce(self._stage[step[0]], layers, after(computed, -total))
            done = computed if self._plan.overlap_sync else summed
            turn = TurnTimes(done, after(done, sum(layer.reshard for layer in layers) / 2))
        return turn

    def _all_reduce(self, stage: int, layers: Sequence[LayerAssignment], began: Moment) -> Moment:
        """Of a stage's layers, in the order of their backwards; when the last one has ended."""
        gpus, overlap = layers[0].gpus, self._plan.overlap_sync
        done = list(accumulate(layer.backward for layer in layers))
        moved = list(accumulate((layer.reshard / 2 for layer in layers), initial=0.0))
        free, met = after(began, done[-1]), None
        for layer, computed, before in zip(layers, done, moved, strict=False):
            if layer.sync > 0:
                ready = after(began, computed + before) if overlap else free
                met = latest([ready, *(x for others, x in self._channels.items() if share_gpus(others, gpus))])
                self._channels[gpus] = free = after(met, layer.sync)
        if met is not None and self._rank in gpus:
            self._sums[stage] = TurnTimes(met, free)
        return free

    def _steps(self, order: Order) -> "Iterator[list[int] | tuple[Order, ...]]":
        """Layers of one stage together, and lanes."""
        for _, group in groupby(order, lambda step: self._stage[step] if isinstance(step, int) else step):
            steps = list(group)
            layers = [step for step in steps if isinstance(step, int)]
            yield layers if layers else steps[0]  # type: ignore[misc]


def after(moment: Moment, seconds: float) -> Moment:
    """So much later."""
    return {event: delay + seconds for event, delay in moment.items()}


def latest(moments: Iterable[Moment]) -> Moment:
    """When all of them have come."""
    found: dict[Event, float] = {}
    for moment in moments:
        for event, delay in moment.items():
            found[event] = max(delay, found.get(event, delay))
    return found

"""Iterations of a plan on GPUs of different speeds, with the waits between GPUs.

A GPU computes its layers as fast as it can and waits only for others:

- A layer on other GPUs than the layer before it, or one that moves samples, starts when all GPUs of the layer before
  have ended theirs, and its own GPUs are free.
- An all-reduce starts when all its GPUs have computed the layer's gradients.
- A join of branches waits for all of them, the updates for both passes, the next iteration for the whole one.

So fast GPUs run ahead of slow ones through a stage and wait at its end. With equal GPUs the times equal the plan's
schedule (``deeppool.planning.evaluate.schedule``).
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from deeppool.base.timeline import SpanKind
from deeppool.planning.evaluate.gpu_sets import GpuSet, share_gpus
from deeppool.planning.evaluate.placement import LayerTimes
from deeppool.planning.evaluate.schedule import (
    IterationSchedule,
    Order,
    group_identical_gpus,
    order_of,
    parameter_gpus,
    parameter_layers,
)
from deeppool.planning.plan import Plan
from deeppool.simulation.plan.conditions import Conditions

Times = NDArray[np.float64]
"""Shape (iterations, GPUs of a layer), or (iterations, 1) where all GPUs have the same time."""


@dataclass(frozen=True, slots=True)
class NetworkSlowness:
    """Factors by which what a layer sends took longer than planned: that of the slowest link it crosses."""

    transfers: tuple[float, ...]
    """Per layer, of the transfers of its inputs, between its GPUs and those of its predecessors."""
    all_reduces: tuple[float, ...]
    """Per layer, of its all-reduce, between its own GPUs."""


@dataclass(frozen=True, slots=True)
class StragglingIterations:
    """Times of many iterations of a plan, as arrays over iterations."""

    iteration_times: NDArray[np.float64]
    """Seconds per iteration."""
    update: NDArray[np.float64]
    """Start of the updates per iteration."""
    slowness: NDArray[np.float64]
    """Factor by which each GPU computed slower than planned, of shape (iterations, gpus)."""
    network: NetworkSlowness
    inputs: tuple[Times, ...]
    """Times as in :class:`deeppool.planning.evaluate.schedule.IterationSchedule`; the GPUs in each layer's order."""
    backward: tuple[Times, ...]
    computed: tuple[Times, ...]
    gradients: tuple[Times, ...]
    sent: tuple[Times, ...]
    all_reduce: tuple[Times, ...]

    def schedule_of(self, plan: Plan, iteration: int, gpu: int) -> tuple[IterationSchedule, tuple[LayerTimes, ...]]:
        """Returns the schedule of one GPU in one iteration, and the times of its layers.

        Times of layers that it does not compute are meaningless.
        """
        slow = float(self.slowness[iteration, gpu])
        seconds = []
        for index, layer in enumerate(plan.layers):
            summing = self.network.all_reduces[index]
            seconds.append(
                LayerTimes(
                    layer.reshard * self.network.transfers[index],
                    layer.forward * slow,
                    layer.backward * slow,
                    layer.sync * summing,
                    layer.all_reduce * summing,
                    layer.update * slow,
                    layer.later_users,
                )
            )
        whole = float(self.iteration_times[iteration])
        columns = [bisect_left(layer.gpus, gpu) for layer in plan.layers]

        def own(times: tuple[Times, ...]) -> tuple[float, ...]:
            pairs = zip(times, columns, strict=True)
            return tuple(float(one[iteration, min(column, one.shape[1] - 1)]) for one, column in pairs)

        moments = (self.inputs, self.backward, self.computed, self.gradients, self.sent, self.all_reduce)
        return IterationSchedule(whole, float(self.update[iteration]), *map(own, moments)), tuple(seconds)

    def mean_held(self, plan: Plan, computing: Mapping[SpanKind, float]) -> NDArray[np.float64]:
        """Returns the mean seconds of an iteration for which the foreground holds each GPU.

        They are those of the spans of :func:`deeppool.simulation.plan.simulate.sampled_activities`, without the spans.

        Args:
            plan: the plan.
            computing: fraction of a span in which the GPU is busy, by kind, where it is below 1.
        """
        held = np.zeros(plan.gpus)
        for layers, same in group_identical_gpus(plan.gpu_sets).items():
            for gpu in same:
                held[gpu] = self._held(plan, layers, gpu, computing).mean()
        return held

    def _held(
        self, plan: Plan, layers: Sequence[int], gpu: int, computing: Mapping[SpanKind, float]
    ) -> NDArray[np.float64]:
        """Returns the seconds of each iteration for which the foreground holds a GPU that computes some layers."""
        owned = parameter_layers(layers, plan.layers)
        columns = {index: bisect_left(plan.layers[index].gpus, gpu) for index in owned}

        def own(times: tuple[Times, ...], chosen: Sequence[int] = layers) -> NDArray[np.float64]:
            found = [times[index][:, min(columns[index], times[index].shape[1] - 1)] for index in chosen]
            return np.array(found).reshape(len(chosen), len(self.iteration_times))

        summed = [index for index in owned if plan.layers[index].all_reduce > 0]
        backward, computed = own(self.backward), own(self.computed)
        gradients, sent, sums = own(self.gradients), own(self.sent), own(self.all_reduce, summed)
        lengths = np.array([plan.layers[index].all_reduce * self.network.all_reduces[index] for index in summed])
        passes, sending = (computed - backward).sum(axis=0), (sent - gradients).sum(axis=0)
        used = _covered(
            np.concatenate([backward, gradients, sums]), np.concatenate([computed, sent, sums + lengths[:, None]])
        )
        # All-reduces count where the GPU neither computes nor sends: a backward pass or a transfer hides the rest.
        exposed = used - passes - sending
        alone = sum(plan.layers[index].forward for index in layers)
        alone += sum(plan.layers[index].update for index in owned)
        arriving = sum(plan.layers[index].reshard / 2 * self.network.transfers[index] for index in layers)
        found: NDArray[np.float64] = (
            alone * self.slowness[:, gpu]
            + passes
            + (arriving + sending) * computing.get("reshard", 1.0)
            + exposed * computing.get("sync", 1.0)
        )
        return found


def simulate_iterations(plan: Plan, conditions: Conditions, iterations: int) -> StragglingIterations:
    """Simulates iterations under given conditions; complexity O(layers x GPUs x iterations)."""
    run = _IterationSimulation(plan, conditions.slowness(iterations, plan.gpus), network_slowness(plan, conditions))
    passes = run.iterate(order_of(plan.tree, plan.gpu_sets))
    whole = passes + (_updates(plan) * run.slow).max(axis=1)
    moments = (run.inputs, run.backward, run.computed, run.gradients, run.sent, run.sync)
    return StragglingIterations(whole, passes, run.slow, run.network, *map(tuple, moments))


def _covered(starts: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the length of the union of intervals, of shape (intervals, iterations), in each iteration."""
    order = np.argsort(starts, axis=0, kind="stable")
    starts, ends = np.take_along_axis(starts, order, axis=0), np.take_along_axis(ends, order, axis=0)
    before = np.maximum.accumulate(ends, axis=0)[:-1]
    begin = np.concatenate([starts[:1], np.maximum(starts[1:], before)])
    covered: NDArray[np.float64] = np.maximum(ends - begin, 0).sum(axis=0)
    return covered


def _updates(plan: Plan) -> NDArray[np.float64]:
    """Returns the planned seconds of each GPU's update."""
    seconds = np.zeros(plan.gpus)
    for index, layer in enumerate(plan.layers):
        seconds[list(parameter_gpus(index, plan.gpu_sets, plan.layers))] += layer.update
    return seconds


def network_slowness(plan: Plan, conditions: Conditions) -> NetworkSlowness:
    """Returns, per layer, by which factors its transfers and its all-reduce take longer."""
    inside, between = plan.cluster.inside, plan.cluster.between
    actual = replace(
        plan.cluster,
        inside=replace(inside, bandwidth=inside.bandwidth * conditions.inside_bandwidth),
        between=replace(between, bandwidth=between.bandwidth * conditions.between_bandwidth),
    )

    def among(gpus: Collection[int]) -> float:
        ends = max(gpus) - min(gpus) + 1, min(gpus)
        return plan.cluster.link(*ends).bandwidth / actual.link(*ends).bandwidth

    return NetworkSlowness(
        tuple(
            among({*layer.gpus}.union(*(plan.layers[source].gpus for source in layer.predecessors)))
            for layer in plan.layers
        ),
        tuple(among(parameter_gpus(index, plan.gpu_sets, plan.layers)) for index in range(len(plan.layers))),
    )


@dataclass(frozen=True, slots=True)
class _PassState:
    """Progress of a forward or backward pass."""

    gpus: GpuSet | None
    """GPUs of the previous step, which continue independently; None: the next step waits for all of them."""
    ends: Times
    """Times at which each of them finished it."""


class _IterationSimulation:
    """All iterations at once, since they are independent of one another."""

    def __init__(self, plan: Plan, slow: NDArray[np.float64], network: NetworkSlowness) -> None:
        self.plan, self.slow, self.network = plan, slow, network
        self.free = np.zeros_like(slow)
        """When each GPU finished its last computation or transfer."""
        self.done = np.zeros_like(slow)
        """When each GPU finished its last backward."""
        self.channels: dict[GpuSet, Times] = {}
        self.running: list[tuple[GpuSet, Times, Times]] = []
        """GPUs, start and end of each all-reduce."""
        nothing: Sequence[Times] = [np.zeros((len(slow), 1))] * len(plan.layers)
        self.inputs, self.backward, self.computed = list(nothing), list(nothing), list(nothing)
        self.gradients, self.sent, self.sync = list(nothing), list(nothing), list(nothing)
        self.columns = {gpus: list(gpus) for gpus in set(plan.gpu_sets)}

    def iterate(self, order: Order) -> NDArray[np.float64]:
        start = _PassState(None, np.zeros((len(self.slow), 1)))
        last = self._backward(order, self._forward(order, start)).ends
        latest: NDArray[np.float64] = np.hstack([last, *self.channels.values()]).max(axis=1)
        return latest

    def _begin(self, index: int, state: _PassState, *, moves: bool) -> Times:
        """Returns the times at which each GPU of a layer can start it."""
        gpus = self.plan.layers[index].gpus
        if state.gpus == gpus and not moves:
            return state.ends
        arrived: Times = np.maximum(state.ends.max(axis=1, keepdims=True), self.free[:, self.columns[gpus]])
        return arrived

    def _ended(self, index: int, ends: Times) -> _PassState:
        gpus = self.plan.layers[index].gpus
        self.free[:, self.columns[gpus]] = ends
        return _PassState(gpus, ends)

    def _forward(self, steps: Order, state: _PassState) -> _PassState:
        for step in steps:
            if isinstance(step, int):
                layer = self.plan.layers[step]
                begin = self._begin(step, state, moves=layer.reshard > 0)
                self.inputs[step] = begin
                computing = layer.forward * self.slow[:, self.columns[layer.gpus]]
                state = self._ended(step, begin + layer.reshard / 2 * self.network.transfers[step] + computing)
            else:
                state = _join([self._forward(lane, state) for lane in step])
        return state

    def _backward(self, steps: Order, state: _PassState) -> _PassState:
        for step in reversed(steps):
            if isinstance(step, int):
                layer = self.plan.layers[step]
                begin = self._begin(step, state, moves=False)
                self.backward[step] = begin
                now = self._beside(layer.gpus, begin, layer.backward * self.slow[:, self.columns[layer.gpus]])
                self.computed[step] = self.done[:, self.columns[layer.gpus]] = now
                now = self._all_reduce(step, now)
                self.gradients[step] = now
                moving = np.full((1, 1), layer.reshard / 2 * self.network.transfers[step])
                now = self.sent[step] = self._beside(layer.gpus, now, moving)
                state = self._ended(step, now)
                if layer.reshard > 0:
                    # The preceding layer needs the gradients of all GPUs.
                    state = _PassState(None, state.ends)
            else:
                # Last the branch whose layers are the first that use their parameters.
                state = _join([self._backward(lane, state) for lane in reversed(step)])
        return state

    def _beside(self, gpus: GpuSet, begin: Times, seconds: Times) -> Times:
        """Returns the ends of what takes some seconds from ``begin`` on, beside the all-reduces of a layer's GPUs."""
        computing = self.plan.sync_computing
        if not computing:
            return begin + seconds
        now, left = np.broadcast_arrays(begin, seconds)
        found = [(start, end) for others, start, end in self.running if (end > now).any() and share_gpus(others, gpus)]
        for start, end in sorted(found, key=lambda times: float(times[0].mean())):
            alone = np.clip(start - now, 0, left)
            now, left = now + alone, left - alone
            beside = np.maximum(end - now, 0)
            done = np.minimum(left, beside * (1 - computing))
            took = np.where(left > done, beside, done / (1 - computing) if computing < 1 else 0.0)
            now, left = now + took, left - done
        ended: Times = now + left
        return ended

    def _all_reduce(self, index: int, computed: Times) -> Times:
        """Starts the all-reduce of a layer; returns when each GPU can continue."""
        layer = self.plan.layers[index]
        if layer.all_reduce <= 0:
            self.sync[index] = computed
            return computed
        gpus = parameter_gpus(index, self.plan.gpu_sets, self.plan.layers)
        start = (computed if gpus == layer.gpus else self.done[:, list(gpus)]).max(axis=1, keepdims=True)
        for others, end in self.channels.items():
            if share_gpus(others, gpus):
                start = np.maximum(start, end)
        self.sync[index] = start
        end = start + layer.all_reduce * self.network.all_reduces[index]
        self.channels[gpus] = end
        self.running.append((gpus, start, end))
        return computed if self.plan.overlap_sync else np.broadcast_to(end, computed.shape)


def _join(states: list[_PassState]) -> _PassState:
    return _PassState(None, np.max([state.ends.max(axis=1, keepdims=True) for state in states], axis=0))

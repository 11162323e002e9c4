"""Layers on GPUs, with prices: what each layer of a plan costs, and what a change to one of them would."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from deeppool.costs.communication import CROSS_NODE, SAME_NODE, SAME_START, Locality
from deeppool.costs.table import CostTable
from deeppool.graph.series_parallel import ParallelBlock, Series, decompose, layers_of
from deeppool.planning.evaluate.schedule import Order, Schedule, busy_gpu_seconds, order_of, schedule
from deeppool.planning.evaluate.timing import pass_duration
from deeppool.planning.search.gpu_partition import concurrent_branches

Passes = Mapping[int, tuple[float, float]] | Sequence[tuple[float, float]]
"""Per layer, seconds in the forward and in the backward pass."""


class LayerTimes(NamedTuple):
    """What one layer takes in one iteration."""

    reshard: float
    forward: float
    backward: float
    sync: float


@dataclass(frozen=True)
class Placement:
    """Where every layer runs."""

    costs: CostTable
    options: tuple[int, ...]
    """Per layer the index of its GPU count."""
    starts: tuple[int, ...]
    """Per layer its first GPU."""
    overlap_sync: bool = False
    """All-reduces overlap the backward pass."""

    def gpu_count(self, layer: int) -> int:
        """GPUs of a layer."""
        return self.costs.gpu_counts[self.options[layer]]

    @cached_property
    def gpus(self) -> tuple[range, ...]:
        """Per layer its GPUs."""
        counts = self.costs.gpu_counts
        return tuple(
            range(start, start + counts[option]) for start, option in zip(self.starts, self.options, strict=True)
        )

    @cached_property
    def tree(self) -> Series:
        """The layers as chains and branches."""
        return decompose([layer.predecessors for layer in self.costs.graph.layers])

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Per layer the layers that read it."""
        return self.costs.graph.successors()

    def incoming(self, layer: int) -> float:
        """Seconds to bring a layer's inputs to its GPUs, and the gradients back."""
        here = self.costs.graph.layers[layer]
        return sum(
            float(self.costs.comm(size, self._place(source, layer))[self.options[source], self.options[layer]])
            for source, size in zip(here.predecessors, here.input_bytes, strict=True)
        )

    def time(self, layer: int) -> float:
        """Seconds of a layer: transfers, compute and synchronisation."""
        option = self.options[layer]
        return self.incoming(layer) + float(self.costs.compute[layer, option] + self.costs.sync[layer, option])

    @property
    def iteration_time(self) -> float:
        """Seconds of both passes."""
        return self._seconds_of(self.tree, self._passes)

    @property
    def gpu_seconds(self) -> float:
        """GPUs x seconds, over all layers; what all-reduces add where they overlap the backward pass."""
        if self.overlap_sync:
            return busy_gpu_seconds(self.schedule, self.gpus, self.layer_seconds)
        return sum(self.time(layer) * self.gpu_count(layer) for layer in range(len(self.options)))

    def forward(self, layer: int) -> float:
        """Seconds of a layer in the forward pass."""
        return self.incoming(layer) / 2 + float(self.costs.forward[layer, self.options[layer]])

    def seconds(self, layer: int) -> LayerTimes:
        """Seconds of a layer, one by one."""
        costs, option = self.costs, self.options[layer]
        return LayerTimes(
            self.incoming(layer),
            float(costs.forward[layer, option]),
            float(costs.backward[layer, option]),
            float(costs.sync[layer, option]),
        )

    @cached_property
    def order(self) -> Order:
        """What runs after what, and what side by side."""
        return order_of(self.tree, self.gpus)

    @cached_property
    def layer_seconds(self) -> tuple[LayerTimes, ...]:
        """Per layer its seconds."""
        return tuple(map(self.seconds, range(len(self.options))))

    @cached_property
    def schedule(self) -> Schedule:
        """When each layer runs."""
        return schedule(self.order, self.gpus, self.layer_seconds, overlap_sync=self.overlap_sync)

    def with_option(self, layer: int, option: int) -> "Placement":
        """The same with another GPU count for one layer."""
        return replace(self, options=(*self.options[:layer], option, *self.options[layer + 1 :]))

    def time_change(self, other: "Placement", touched: Iterable[int]) -> float:
        """Seconds by which an iteration gets longer in ``other``, in which only ``touched`` layers take other times."""
        if self.overlap_sync:
            # A hidden all-reduce may come to light anywhere, so the whole iteration is timed again.
            seconds = list(self.layer_seconds)
            for layer in touched:
                seconds[layer] = other.seconds(layer)
            then = schedule(self.order, other.gpus, seconds, overlap_sync=True)
            return then.iteration_time - self.schedule.iteration_time
        passes = {**dict(enumerate(self._passes)), **{layer: other.passes(layer) for layer in touched}}
        parts = {id(self._parts[layer]): self._parts[layer] for layer in touched}
        return sum(self._seconds_of(part, passes) - self._part_seconds[key] for key, part in parts.items())

    def passes(self, layer: int) -> tuple[float, float]:
        """Seconds of a layer in the forward and in the backward pass."""
        forward = self.forward(layer)
        return forward, self.time(layer) - forward

    @cached_property
    def _passes(self) -> tuple[tuple[float, float], ...]:
        return tuple(map(self.passes, range(len(self.options))))

    @cached_property
    def _part_seconds(self) -> dict[int, float]:
        """By the identity of a part."""
        parts = {id(part): part for part in self._parts}
        return {key: self._seconds_of(part, self._passes) for key, part in parts.items()}

    def _seconds_of(self, part: Series, passes: Passes) -> float:
        """Seconds of both passes through a part of the model, side by side what runs so here."""
        forward = pass_duration(part, self.gpus, lambda layer: passes[layer][0])
        return forward + pass_duration(part, self.gpus, lambda layer: passes[layer][1])

    @cached_property
    def rooms(self) -> tuple[int, ...]:
        """Per layer, GPUs from its first one on that nothing else holds at the same time.

        They end with the node where they start inside one: more GPUs would synchronise by other links than the
        first ones of the cluster, whose prices these are.
        """
        cluster = self.costs.network.cluster
        rooms = [0] * len(self.options)
        self._fill_rooms(rooms, self.tree, cluster.gpus)
        in_node = [-start % cluster.gpus_per_node or cluster.gpus for start in self.starts]
        return tuple(map(min, rooms, in_node))

    def _fill_rooms(self, rooms: list[int], series: Series, end: int) -> None:
        for layer in layers_of(series):
            rooms[layer] = end - self.starts[layer]
        for block in (*series.blocks, series.tail):
            if not isinstance(block, ParallelBlock):
                continue
            lanes = concurrent_branches(block, self.gpus)
            first = [
                min(self.starts[x] for branch in lane for x in layers_of(block.branches[branch])) for lane in lanes
            ]
            for lane, start in zip(lanes, first, strict=True):
                until = min([end, *(other for other in first if other > start)])
                for branch in lane:
                    self._fill_rooms(rooms, block.branches[branch], until)

    @cached_property
    def _parts(self) -> tuple[Series, ...]:
        """Per layer the smallest part of the whole chain that holds it: a cut and what lies before it."""
        parts: dict[int, Series] = {}
        for layer, block in zip(self.tree.layers, self.tree.blocks, strict=True):
            part = Series((layer,), (block,))
            parts.update(dict.fromkeys(layers_of(part), part))
        return tuple(parts[layer] for layer in range(len(self.options)))

    def _place(self, source: int, layer: int) -> Locality:
        starts = self.starts[source], self.starts[layer]
        if starts[0] == starts[1]:
            return SAME_START
        first = min(starts)
        last = max(starts[0] + self.gpu_count(source), starts[1] + self.gpu_count(layer)) - 1
        node = self.costs.network.cluster.gpus_per_node
        return SAME_NODE if first // node == last // node else CROSS_NODE

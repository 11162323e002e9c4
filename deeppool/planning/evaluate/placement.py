"""Placement: the cost of each layer on its GPUs, and the effect of a change to one layer."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from deeppool.collectives.buckets import Buckets
from deeppool.costs.communication import CROSS_NODE, SAME_NODE, SAME_START, Locality
from deeppool.costs.table import CostTable
from deeppool.graph.series_parallel import Series, branching_blocks, decompose, layers_of
from deeppool.planning.evaluate.gpu_sets import concurrent_branches
from deeppool.planning.evaluate.schedule import (
    IterationSchedule,
    Order,
    bucket_seconds,
    busy_gpu_seconds,
    idle_seconds,
    order_of,
    schedule,
)
from deeppool.planning.evaluate.timing import pass_duration

Passes = Mapping[int, tuple[float, float]] | Sequence[tuple[float, float]]
"""Seconds of each layer in the forward and in the backward pass."""


class LayerTimes(NamedTuple):
    """Seconds of one layer in one iteration."""

    reshard: float
    forward: float
    backward: float
    sync: float
    """All-reduce of its own gradients by themselves."""
    all_reduce: float
    """All-reduce that starts after its backward; see :class:`deeppool.planning.evaluate.schedule.LayerSeconds`."""
    update: float
    """Update of its parameters; 0 in the paper's model."""
    later_users: tuple[int, ...] = ()
    """Later layers that use some of its parameters; none in the paper's model."""


@dataclass(frozen=True)
class Placement:
    """GPUs of every layer, with the costs that follow."""

    costs: CostTable
    options: tuple[int, ...]
    """Index of each layer's GPU count."""
    starts: tuple[int, ...]
    """First GPU of each layer."""

    def gpu_count(self, layer: int) -> int:
        """Returns the number of GPUs of a layer."""
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
        """Returns the seconds of transfers of a layer's inputs to its GPUs, and of the gradients back."""
        return self._incoming[layer]

    @cached_property
    def _incoming(self) -> tuple[float, ...]:
        return tuple(map(self._transfers_to, range(len(self.options))))

    def _transfers_to(self, layer: int) -> float:
        here = self.costs.graph.layers[layer]
        return sum(
            self.costs.comm_rows(size, self._locality(source, layer))[self.options[source]][self.options[layer]]
            for source, size in zip(here.predecessors, here.input_bytes, strict=True)
        )

    def time(self, layer: int) -> float:
        """Returns the seconds of a layer: transfers, compute and synchronisation."""
        option = self.options[layer]
        return self.incoming(layer) + float(self.costs.compute[layer, option] + self.costs.sync[layer, option])

    @property
    def iteration_time(self) -> float:
        """Seconds of an iteration."""
        if self.costs.overlap:
            return self.schedule.iteration_time
        return self._seconds_of(self.tree, self._passes)

    @property
    def least_time(self) -> float:
        """Seconds in which no iteration ends: those of GPU 0 by itself, in a fraction of the time of a schedule.

        It computes its layers forward, and then backward while it sums their gradients.
        """
        layers = np.nonzero(np.array(self.starts) == 0)[0]
        rows = layers, np.array(self.options)[layers]
        forward, backward, sums, update = self.costs.least_parts[:, *rows].sum(axis=1).tolist()
        moved = float(np.array(self._incoming)[layers].sum()) / 2
        return float(forward + moved + max(backward + moved, sums) + update)

    @cached_property
    def gpu_seconds(self) -> float:
        """GPUs x seconds, over all layers and updates; of overlapping all-reduces only the part that nothing hides."""
        if self.costs.overlap:
            return busy_gpu_seconds(self.schedule, self.gpus, self.layer_times)
        return sum(self.time(layer) * self.gpu_count(layer) for layer in range(len(self.options)))

    def idle_seconds(self) -> list[float]:
        """Returns the seconds of an iteration in which each GPU of the cluster is not held."""
        return idle_seconds(self.schedule, self.gpus, self.layer_times, self.costs.network.cluster.gpus)

    def forward(self, layer: int) -> float:
        """Returns the seconds of a layer in the forward pass."""
        return self.incoming(layer) / 2 + float(self.costs.forward[layer, self.options[layer]])

    @cached_property
    def order(self) -> Order:
        """Order of the layers, with the branches that run side by side."""
        return order_of(self.tree, self.gpus)

    @cached_property
    def layer_times(self) -> tuple[LayerTimes, ...]:
        """Per layer its seconds, part by part."""
        costs = self.costs
        rows = np.arange(len(self.options)), np.array(self.options)
        sync = costs.sync[rows].tolist()
        all_reduce = sync
        users: Sequence[tuple[int, ...]] = [()] * len(sync)
        if self.costs.overlap:
            users = costs.graph.later_users
            all_reduce = bucket_seconds(
                self.order,
                self.gpus,
                costs.graph.gradient_bytes,
                costs.buckets,
                costs.all_reduce_time,
                costs.graph.tied,
            )
        forward, backward = costs.forward[rows].tolist(), costs.backward[rows].tolist()
        return tuple(map(LayerTimes, self._incoming, forward, backward, sync, all_reduce, costs.update.tolist(), users))

    @cached_property
    def schedule(self) -> IterationSchedule:
        """Start times of all layers."""
        overlap, computing = self.costs.overlap, self.costs.network.sync_computing
        return schedule(self.order, self.gpus, self.layer_times, overlap_sync=overlap, sync_computing=computing)

    def with_option(self, layers: Collection[int], option: int, start: int | None = None) -> "Placement":
        """Returns the same placement with another GPU count for some layers, and another first GPU if one is given."""
        options, starts, gpus = list(self.options), list(self.starts), list(self.gpus)
        for layer in layers:
            options[layer] = option
            if start is not None:
                starts[layer] = start
            gpus[layer] = range(starts[layer], starts[layer] + self.costs.gpu_counts[option])
        other = replace(self, options=tuple(options), starts=tuple(starts))
        # Of what is known here only these layers' GPUs, their transfers and those of their readers change.
        incoming = list(self._incoming)
        for each in {*layers, *(reader for layer in layers for reader in self.readers[layer])}:
            incoming[each] = other._transfers_to(each)
        vars(other).update(tree=self.tree, readers=self.readers, gpus=tuple(gpus), _incoming=tuple(incoming))
        return other

    def with_buckets(self, buckets: Buckets) -> "Placement":
        """Returns the same placement with the gradients in other buckets."""
        other = replace(self, costs=replace(self.costs, buckets=buckets))
        vars(other).update(tree=self.tree, order=self.order, gpus=self.gpus, _incoming=self._incoming)
        return other

    def time_change(self, other: "Placement", touched: Iterable[int]) -> float:
        """Returns the seconds by which ``other``, whose times differ only in ``touched`` layers, takes longer."""
        if self.costs.overlap:
            # A hidden all-reduce may become exposed anywhere, so the whole iteration is timed again.
            return other.schedule.iteration_time - self.schedule.iteration_time
        passes = {**dict(enumerate(self._passes)), **{layer: other.passes(layer) for layer in touched}}
        parts = {id(self._parts[layer]): self._parts[layer] for layer in touched}
        return sum(self._seconds_of(part, passes) - self._part_seconds[key] for key, part in parts.items())

    def gpu_seconds_change(self, other: "Placement", touched: Iterable[int]) -> float:
        """Returns the GPU-seconds by which ``other``, whose times differ only in ``touched`` layers, takes more."""
        if self.costs.overlap:
            return other.gpu_seconds - self.gpu_seconds
        return sum(other.time(x) * other.gpu_count(x) - self.time(x) * self.gpu_count(x) for x in touched)

    def passes(self, layer: int) -> tuple[float, float]:
        """Returns the seconds of a layer in the forward and in the backward pass."""
        forward = self.forward(layer)
        return forward, self.time(layer) - forward

    @cached_property
    def _passes(self) -> tuple[tuple[float, float], ...]:
        return tuple(map(self.passes, range(len(self.options))))

    @cached_property
    def _part_seconds(self) -> dict[int, float]:
        """Seconds by the identity of a part."""
        parts = {id(part): part for part in self._parts}
        return {key: self._seconds_of(part, self._passes) for key, part in parts.items()}

    def _seconds_of(self, part: Series, passes: Passes) -> float:
        """Returns the seconds of both passes through a part of the model on the GPUs of this placement."""
        forward = pass_duration(part, self.gpus, lambda layer: passes[layer][0])
        return forward + pass_duration(part, self.gpus, lambda layer: passes[layer][1])

    @cached_property
    def free_widths(self) -> tuple[int, ...]:
        """Per layer, the number of GPUs from its first one on that nothing else uses at the same time.

        They end with the node where they start inside one: more GPUs would synchronise by other links than the
        first ones of the cluster, which these costs are for.
        """
        cluster = self.costs.network.cluster
        widths = [min(cluster.gpus - x, -x % cluster.gpus_per_node or cluster.gpus) for x in self.starts]
        for block in branching_blocks(self.tree):
            groups = concurrent_branches(block, self.gpus)
            lanes = [[x for branch in group for x in layers_of(block.branches[branch])] for group in groups]
            first = [min(self.starts[x] for x in lane) for lane in lanes]
            for lane, start in zip(lanes, first, strict=True):
                until = min((other for other in first if other > start), default=cluster.gpus)
                for layer in lane if until < cluster.gpus else ():
                    widths[layer] = min(widths[layer], until - self.starts[layer])
        return tuple(widths)

    @cached_property
    def _parts(self) -> tuple[Series, ...]:
        """Per layer the smallest part of the whole chain that contains it: a cut and what lies before it."""
        parts: dict[int, Series] = {}
        for layer, block in zip(self.tree.layers, self.tree.blocks, strict=True):
            part = Series((layer,), (block,))
            parts.update(dict.fromkeys(layers_of(part), part))
        return tuple(parts[layer] for layer in range(len(self.options)))

    def _locality(self, source: int, layer: int) -> Locality:
        starts = self.starts[source], self.starts[layer]
        if starts[0] == starts[1]:
            return SAME_START
        first = min(starts)
        last = max(starts[0] + self.gpu_count(source), starts[1] + self.gpu_count(layer)) - 1
        node = self.costs.network.cluster.gpus_per_node
        return SAME_NODE if first // node == last // node else CROSS_NODE


def data_parallel(costs: CostTable, option: int) -> Placement:
    """Returns the placement with every layer on the GPUs of one count of the table."""
    layers = len(costs.graph.layers)
    return Placement(costs, (option,) * layers, (0,) * layers)

"""Start times of the layers and all-reduces of a plan within one iteration.

Layers run forward and then backward, each on its GPUs. A layer's transfers come before it in forward and after it
in backward. Between a fork and its join, branches on different GPUs run side by side, branches that share a GPU one
after another, and the join waits for the last of them; backward the same from the join to the fork.

The all-reduce of a layer's gradients follows its backward. In the paper's model everything waits for it (DeepPool,
section 4.1):

    backward 2 | all-reduce 2 | backward 1 | all-reduce 1

Where all-reduces overlap the backward pass, nothing but other all-reduces does, and small gradients share one (see
:mod:`deeppool.collectives.buckets`), which starts after the last backward of its layers. Each GPU has one channel: an
all-reduce starts when that backward has ended and the earlier ones on any of its GPUs have, in the order of the
backward pass, and both passes end when the last layer and the last all-reduce have:

    backward 2 | backward 1 |
               | all-reduce 2     | all-reduce 1

The gradients of parameters that several layers use are summed by the GPUs of all of them, once the first of these
layers has computed its backward, and the other GPUs theirs of all later layers: of a whole branch beside the first one.

Then every GPU updates the parameters of its own layers, and the iteration ends when the last of them has. In the
paper's model updates take no time.

Where the core that computes a backward pass also computes a share of an all-reduce, as gloo on a CPU does, what runs
beside the all-reduce on the same GPUs advances at the rate of 1 - share. A backward pass of b seconds beside an
all-reduce of s seconds, both at full length, takes b + share x s:

    backward 2 | backward 1 . . . . . |
               | all-reduce 2     | all-reduce 1

Else layers, transfers and all-reduces are assumed not to slow one another. That is optimistic: on real GPUs they share
memory bandwidth, links and multiprocessors.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Protocol

from deeppool.collectives.buckets import Buckets
from deeppool.graph.series_parallel import NonSeriesParallel, ParallelBlock, Series
from deeppool.planning.evaluate.channels import Channels
from deeppool.planning.evaluate.gpu_sets import Gpus, GpuSet, concurrent_branches, share_gpus

Order = tuple["int | tuple[Order, ...]", ...]
"""Layers one after another; a tuple among them holds orders that run side by side."""


class LayerSeconds(Protocol):
    """Seconds of one layer in one iteration."""

    @property
    def reshard(self) -> float:
        """Transfers of inputs and back of their gradients; half in each pass."""

    @property
    def forward(self) -> float:
        """Forward computation."""

    @property
    def backward(self) -> float:
        """Backward computation."""

    @property
    def all_reduce(self) -> float:
        """All-reduce that starts after its backward; 0 if its gradients share one with those of an earlier layer."""

    @property
    def update(self) -> float:
        """Update of its parameters on each of its GPUs."""

    @property
    def later_users(self) -> tuple[int, ...]:
        """Later layers that use some of its parameters, whose GPUs sum and update these, too."""


@dataclass(frozen=True, slots=True)
class IterationSchedule:
    """Start times of one iteration, per layer, in seconds from its start."""

    iteration_time: float
    update: float
    """Start of all updates: the end of both passes."""
    inputs: tuple[float, ...]
    """Start of the transfers of inputs; the forward follows."""
    backward: tuple[float, ...]
    """Start of the backward."""
    computed: tuple[float, ...]
    """End of the backward."""
    gradients: tuple[float, ...]
    """Start of the transfers of the inputs' gradients."""
    sent: tuple[float, ...]
    """End of these transfers."""
    all_reduce: tuple[float, ...]
    """Start of the all-reduce that follows its backward."""


def order_of(part: Series | ParallelBlock | NonSeriesParallel | None, gpus: Gpus) -> Order:
    """Returns the order of the layers in a forward pass, with the branches that run side by side.

    Args:
        part: part of the tree that ``decompose`` returns.
        gpus: per layer its GPUs.
    """
    if part is None:
        return ()
    if isinstance(part, NonSeriesParallel):
        return part.layers
    if isinstance(part, ParallelBlock):
        orders = tuple(
            tuple(chain.from_iterable(order_of(part.branches[branch], gpus) for branch in group))
            for group in concurrent_branches(part, gpus)
        )
        return orders[0] if len(orders) == 1 else (orders,)
    steps = (
        (layer,) if block is None else (*order_of(block, gpus), layer)
        for layer, block in zip(part.layers, part.blocks, strict=True)
    )
    return (*chain.from_iterable(steps), *order_of(part.tail, gpus))


def stages_in_order(order: Order, gpus: Gpus) -> Iterator[tuple[int, ...]]:
    """Yields the layers that follow one another on the same GPUs, stage by stage.

    A stage ends where branches that run side by side begin or meet: one that went on would keep a branch waiting for
    the others.
    """
    stage: list[int] = []
    for step in order:
        if stage and (not isinstance(step, int) or gpus[step] != gpus[stage[-1]]):
            yield tuple(stage)
            stage = []
        if isinstance(step, int):
            stage.append(step)
        else:
            for side in step:
                yield from stages_in_order(side, gpus)
    if stage:
        yield tuple(stage)


def bucket_seconds(
    order: Order,
    gpus: Gpus,
    gradient_bytes: Sequence[int],
    buckets: Buckets,
    all_reduce_time: Callable[[GpuSet, int], float],
    tied: Mapping[tuple[int, ...], int] | None = None,
) -> list[float]:
    """Returns, per layer, the seconds of the all-reduces of the buckets that its gradients complete.

    Gradients share a bucket only with those of the same stage that are summed over the same GPUs: those of a tied
    parameter over the GPUs of all layers that use it.

    Args:
        order: order of the layers, see :func:`order_of`.
        gpus: per layer its GPUs.
        gradient_bytes: per layer; of tied parameters for the first one.
        buckets: rule that groups them.
        all_reduce_time: seconds of an all-reduce, by its GPUs and bytes.
        tied: bytes of the parameters that several layers use, by these layers, the first one first.
    """
    seconds, own = [0.0] * len(gpus), dict(enumerate(gradient_bytes))
    summed: dict[GpuSet, dict[int, int]] = {}
    sets: dict[int, set[GpuSet]] = {}
    for (first, *others), size in (tied or {}).items():
        used = gpus[first], *(gpus[layer] for layer in others)
        if len(all_gpus := tuple(sorted(set().union(*used)))) > len(gpus[first]):
            own[first] -= size
            of_layer = summed.setdefault(all_gpus, {})
            of_layer[first] = of_layer.get(first, 0) + size
            sets.setdefault(first, set()).update(used, [all_gpus])
    for stage in stages_in_order(order, gpus):
        for sizes in (own, *summed.values()):
            backward = [layer for layer in reversed(stage) if sizes.get(layer)]
            for bucket in buckets.group([sizes[layer] for layer in backward]):
                members = [backward[position] for position in bucket]
                together = sum(sizes[layer] for layer in members)
                # No less than over the GPUs of any of them, which is what bounds of plans count.
                among = {gpus[members[0]]} if sizes is own else set().union(*(sets[layer] for layer in members))
                seconds[members[-1]] += max(all_reduce_time(used, together) for used in among)
    return seconds


def layers_in_order(order: Order) -> Iterator[int]:
    """Yields all layers of an order; of orders side by side one after the other."""
    for step in order:
        if isinstance(step, int):
            yield step
        else:
            for side in step:
                yield from layers_in_order(side)


def schedule(
    order: Order, gpus: Gpus, layers: Sequence[LayerSeconds], *, overlap_sync: bool, sync_computing: float = 0.0
) -> IterationSchedule:
    """Returns the schedule of one iteration; complexity O(layers x different sets of GPUs).

    Args:
        order: order of the layers, see :func:`order_of`.
        gpus: per layer its GPUs.
        layers: seconds of each.
        overlap_sync: whether all-reduces overlap the backward pass.
        sync_computing: share of an all-reduce that the cores of its GPUs compute.
    """
    inputs, backward, computed, gradients, sent, all_reduce = ([0.0] * len(layers) for _ in range(6))
    channels = Channels(sync_computing)
    ends: dict[GpuSet, float] = {}
    """End of the last backward on each set of GPUs."""

    def run_forward(steps: Order, now: float) -> float:
        for step in steps:
            if isinstance(step, int):
                inputs[step] = now
                now += layers[step].reshard / 2 + layers[step].forward
            else:
                now = max([run_forward(side, now) for side in step])
        return now

    def run_backward(steps: Order, now: float) -> float:
        for step in reversed(steps):
            if isinstance(step, int):
                layer, used = layers[step], gpus[step]
                backward[step] = now
                now = computed[step] = all_reduce[step] = ends[used] = channels.beside(used, now, layer.backward)
                if layer.all_reduce > 0:
                    summing, ready = parameter_gpus(step, gpus, layers), now
                    if summing != used:
                        ready = max(end for others, end in ends.items() if share_gpus(others, summing))
                    all_reduce[step] = channels.start(summing, ready, layer.all_reduce)
                    now = now if overlap_sync else all_reduce[step] + layer.all_reduce
                gradients[step] = now
                now = sent[step] = channels.beside(used, now, layer.reshard / 2)
            else:
                # Last the branch whose layers are the first that use their parameters.
                now = max([run_backward(side, now) for side in reversed(step)])
        return now

    end = run_backward(order, run_forward(order, 0.0))
    passes = max(end, channels.end)
    whole = passes + update_time(gpus, layers)
    return IterationSchedule(whole, passes, *map(tuple, (inputs, backward, computed, gradients, sent, all_reduce)))


def parameter_gpus(layer: int, gpus: Gpus, layers: Sequence[LayerSeconds]) -> GpuSet:
    """Returns the GPUs that sum the gradients of a layer's parameters: its own, and those of later users."""
    used = {gpus[layer], *(gpus[user] for user in layers[layer].later_users)}
    return gpus[layer] if len(used) == 1 else tuple(sorted(set().union(*used)))


def parameter_layers(computed: Sequence[int], layers: Sequence[LayerSeconds]) -> list[int]:
    """Returns the layers that a GPU computes, and those whose parameters it has as a later user."""
    own = set(computed)
    others = (x for x, layer in enumerate(layers) if x not in own and not own.isdisjoint(layer.later_users))
    return [*computed, *others]


def update_time(gpus: Gpus, layers: Sequence[LayerSeconds]) -> float:
    """Returns the seconds of the update on the GPU whose layers take longest."""
    own: dict[GpuSet, float] = {}
    for index, layer in enumerate(layers):
        used = parameter_gpus(index, gpus, layers)
        own[used] = own.get(used, 0.0) + layer.update
    # Where the last of a GPU's layers begins, a GPU computes all of them, and perhaps more.
    firsts = {first for used in own for first, _ in _runs(used)}
    return max(sum(seconds for used, seconds in own.items() if gpu in used) for gpu in firsts)


@dataclass(frozen=True, slots=True)
class ExposedSync:
    """An interval in which a GPU does nothing but a layer's all-reduce."""

    layer: int
    start: float
    end: float


def exposed_syncs(
    times: IterationSchedule, layers: Sequence[LayerSeconds], computed: Sequence[int]
) -> Iterator[ExposedSync]:
    """Yields the intervals of all-reduces on one GPU during which it neither computes nor moves samples.

    Args:
        times: schedule of the iteration.
        layers: seconds of each.
        computed: the layers that the GPU computes.
    """
    intervals = [(times.backward[layer], times.computed[layer]) for layer in computed]
    intervals += [(times.gradients[layer], times.sent[layer]) for layer in computed]
    busy = sorted((start, end) for start, end in intervals if end > start)
    position = 0
    # All-reduces of one GPU follow one another, so what is busy before one is past for the next.
    summed = (x for x in parameter_layers(computed, layers) if layers[x].all_reduce > 0)
    for layer in sorted(summed, key=times.all_reduce.__getitem__):
        now, end = times.all_reduce[layer], times.all_reduce[layer] + layers[layer].all_reduce
        while now < end:
            while position < len(busy) and busy[position][1] <= now:
                position += 1
            begin = min(end, busy[position][0]) if position < len(busy) else end
            if begin > now:
                yield ExposedSync(layer, now, begin)
            now = max(begin, min(end, busy[position][1])) if begin < end else end


def group_identical_gpus(gpus: Gpus) -> dict[tuple[int, ...], list[int]]:
    """Groups GPUs that compute the same layers: {layers: GPUs}."""
    # Layers whose GPUs begin or end there; from one such GPU to the next all compute the same layers.
    starts: dict[int, list[int]] = {}
    for layer, used in enumerate(gpus):
        for first, last in _runs(used):
            starts.setdefault(first, []).append(layer)
            starts.setdefault(last + 1, []).append(layer)
    found: dict[tuple[int, ...], list[int]] = {}
    computed: set[int] = set()
    for first, end in pairwise(sorted(starts)):
        computed.symmetric_difference_update(starts[first])
        if computed:
            found.setdefault(tuple(sorted(computed)), []).extend(range(first, end))
    return found


def _runs(gpus: GpuSet) -> Iterator[tuple[int, int]]:
    """Yields the first and last GPU of each run of consecutive GPUs."""
    if not gpus:
        return
    if gpus[-1] - gpus[0] + 1 == len(gpus):
        yield gpus[0], gpus[-1]
        return
    first = previous = gpus[0]
    for gpu in gpus[1:]:
        if gpu != previous + 1:
            yield first, previous
            first = gpu
        previous = gpu
    yield first, previous


def idle_seconds(times: IterationSchedule, gpus: Gpus, layers: Sequence[LayerSeconds], count: int) -> list[float]:
    """Returns, of each of the first ``count`` GPUs, the seconds of an iteration in which it is not held."""
    own, idle = _own_seconds(times, layers), [times.iteration_time] * count
    for computed, same in group_identical_gpus(gpus).items():
        held = sum(own[layer] for layer in computed)
        held += sum(layers[layer].update for layer in parameter_layers(computed, layers))
        held += sum(sync.end - sync.start for sync in exposed_syncs(times, layers, computed))
        for gpu in same:
            idle[gpu] -= held
    return idle


def busy_gpu_seconds(times: IterationSchedule, gpus: Gpus, layers: Sequence[LayerSeconds]) -> float:
    """Returns the GPU-seconds of computing, transfers, all-reduces and updates; what overlaps counts once."""
    own = _own_seconds(times, layers)
    total = sum(seconds * len(used) for seconds, used in zip(own, gpus, strict=True))
    total += sum(each.update * len(parameter_gpus(layer, gpus, layers)) for layer, each in enumerate(layers))
    for computed, same in group_identical_gpus(gpus).items():
        total += len(same) * sum(sync.end - sync.start for sync in exposed_syncs(times, layers, computed))
    return total


def _own_seconds(times: IterationSchedule, layers: Sequence[LayerSeconds]) -> list[float]:
    """Returns per layer the seconds of its transfers and both passes on each of its GPUs."""
    passes = zip(times.backward, times.computed, times.gradients, times.sent, strict=True)
    backward = (computed - start + sent - gradients for start, computed, gradients, sent in passes)
    return [x.reshard / 2 + x.forward + seconds for x, seconds in zip(layers, backward, strict=True)]

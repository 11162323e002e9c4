"""Hill climbing from a plan: small changes while an iteration becomes faster.

It follows a search whose plan may be far from the optimum. Each change is timed by the schedule, with the buckets of a
run and the all-reduces of branches that run side by side, of which the search itself knows less. A change gives

    layers, one or several in a row      the next GPU count, or that of the layer before or after them
    some of the layers in a row          that of the layer before or after them, up to the end of a block
    a branch                             the GPUs of another one, or about as many as it has behind those of one

Where no change makes the plan faster, some at random often lead to one from which others do (iterated local search:
H. R. Lourenço, O. C. Martin and T. Stützle, Handbook of Metaheuristics, 2003).
"""

import itertools
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter

from deeppool.base import cancellation
from deeppool.costs.amplification import TOLERANCE, amplification
from deeppool.graph.series_parallel import ParallelBlock, branching_blocks, layers_of
from deeppool.planning.evaluate.gpu_sets import concurrent_branches
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search.labels import Plans

MOST_TIMED = 200_000
"""Layers to time at most in one climb, of all changes together."""
LEAST_GAIN = 1e-4
"""Relative gain from which a change is made."""
FAR = 1.02
"""A plan within this factor of the bound is not changed at random: that took long, and gained little."""
RANDOM_CHANGES = 2
"""Changes at random before another climb, which looks near to them."""
MOST_VAIN = 20
"""Climbs in a row without gain after which no other one follows."""

Permitted = Callable[[Placement, Iterable[int]], bool]
"""Returns whether a plan is permitted, given the layers that take another time than in one that is."""
Value = Callable[[Placement], float]
"""Returns the number that is to become less."""
SECONDS: Value = attrgetter("iteration_time")
LEAST_SECONDS: Value = attrgetter("least_time")
Timed = dict[Plans, tuple[float, bool]]
"""Values of plans, by their layers' GPU counts and first GPUs; or what they are not below, and False."""
Change = tuple[Collection[int], int, int | None]
"""Layers, the index of their GPU count, and their first GPU; None: as before."""


def improve(plans: Iterable[Placement], permitted: Permitted, bound: float, value: Value = SECONDS) -> Placement:
    """Returns the best plan of climbs from some plans, and from random changes of the best one while it is far.

    Args:
        plans: where to start; they are permitted.
        permitted: whether a change is.
        bound: value that no permitted plan beats, or that is enough.
        value: what is to become less; not below a plan's seconds.
    """
    timed: Timed = {}
    rng = random.Random(0)  # the same plan each time
    best, vain = min((climb(plan, permitted, value=value, timed=timed) for plan in plans), key=value), 0
    while vain < MOST_VAIN and value(best) > bound * FAR:
        other, near = best, set[int]()
        for _ in range(RANDOM_CHANGES):
            other, layers = _change_at_random(other, permitted, rng)
            near |= _beside(layers)
        other = climb(other, permitted, near, value, timed=timed)
        vain = 0 if value(other) < value(best) * (1 - LEAST_GAIN) else vain + 1
        best = min(best, other, key=value)
    return best


def _change_at_random(plan: Placement, permitted: Permitted, rng: random.Random) -> tuple[Placement, Collection[int]]:
    """Returns a plan with one change, and its layers."""
    changes = [*_counts(plan), *_places(plan)]
    rng.shuffle(changes)
    for change in changes:
        other = _changed(plan, change)
        if _is_possible(other, plan, change, permitted):
            return other, change[0]
    return plan, ()


def climb(
    plan: Placement,
    permitted: Permitted,
    near: set[int] | None = None,
    value: Value = SECONDS,
    at_least: Value = LEAST_SECONDS,
    timed: Timed | None = None,
) -> Placement:
    """Returns a plan that no small change makes faster, or the best one of the changes that are tried.

    Args:
        plan: where to start; it is permitted.
        permitted: whether a change is.
        near: layers of which changes have one at least; those beside a change that is made are added. None: all.
        value: what is to become less; not below 0.
        at_least: number that the value is not below, found in less time.
        timed: values of plans, of other climbs to the same value too; many changes lead back to one of them.
    """
    left, before, least = MOST_TIMED // len(plan.options), None, value(plan)
    timed = {} if timed is None else timed
    while plan is not before:
        before = plan
        for changes in (_counts, _places):
            for change in list(changes(plan)):
                if near is not None and near.isdisjoint(change[0]):
                    continue
                if not left or not least:
                    return plan
                enough = least * (1 - LEAST_GAIN)
                ways = _ways(plan, change)
                number, exact = timed.get(ways, (0.0, False))
                if number >= enough:
                    continue
                other = _changed(plan, change)
                if not exact:
                    number = at_least(other)
                    if number < enough and _is_possible(other, plan, change, permitted):
                        left -= 1
                        number, exact = value(other), True
                    timed[ways] = number, exact
                if exact and number < enough:
                    plan, least = other, number
                    if near is not None:
                        near |= _beside(change[0])
    return plan


def _beside(layers: Collection[int]) -> set[int]:
    """Returns layers with those before and after them."""
    return {layer + step for layer in layers for step in (-1, 0, 1)}


def _ways(plan: Placement, change: Change) -> Plans:
    """Returns the GPU counts and first GPUs of all layers with a change."""
    layers, option, start = change
    options, starts = list(plan.options), list(plan.starts)
    for layer in layers:
        options[layer], starts[layer] = option, starts[layer] if start is None else start
    return tuple(options), tuple(starts)


def _changed(plan: Placement, change: Change) -> Placement:
    """Returns a plan with a change."""
    other = plan.with_option(*change)
    if change[2] is None:
        # The same branches run side by side.
        vars(other).update(order=plan.order)
    return other


def _is_possible(other: Placement, plan: Placement, change: Change, permitted: Permitted) -> bool:
    """Returns whether a plan with a change is permitted and uses no GPU twice."""
    cancellation.check()
    layers = change[0]
    touched = {*layers, *(reader for layer in layers for reader in plan.readers[layer])}
    return _fits(other, layers) and permitted(other, touched)


def _counts(plan: Placement) -> Iterator[Change]:
    """Yields other GPU counts for layers in a row of one count, for parts of these, and for each layer."""
    options, count, end = plan.options, len(plan.costs.gpu_counts), 0
    runs = []
    for _, run in itertools.groupby(options):
        start, end = end, end + len(list(run))
        runs.append(range(start, end))
    for layers in [*(run for run in runs if len(run) > 1), *(range(layer, layer + 1) for layer in range(len(options)))]:
        option = options[layers[0]]
        beside = options[max(layers[0] - 1, 0)], options[min(layers[-1] + 1, len(options) - 1)]
        for other in sorted({option - 1, option + 1, *beside} - {option, -1, count}):
            yield layers, other, None
    for before, after in itertools.pairwise(runs):
        # Where the count changes inside a block, one layer more or less may only cost a transfer.
        for end in (layer + 1 for layer in plan.tree.layers if before[0] <= layer < after[-1]):
            if end < after[0] - 1:
                yield range(end, after[0]), options[after[0]], None
            elif end > after[0] + 1:
                yield range(after[0], end), options[before[0]], None


def _places(plan: Placement) -> Iterator[Change]:
    """Yields other GPUs for the branches of each block: those of another one, and about as many behind one."""
    every = range(len(plan.costs.gpu_counts))
    for block in branching_blocks(plan.tree):
        inside = {(plan.starts[layer], plan.options[layer]) for layer in layers_of(block)}
        behind = {start + plan.costs.gpu_counts[option] for start, option in inside}
        for branch in block.branches:
            layers = layers_of(branch)
            own = {(plan.starts[layer], plan.options[layer]) for layer in layers}
            counts = {option + step for _, option in own for step in (-1, 0, 1)} & set(every)
            for start, option in sorted({*inside, *itertools.product(behind, counts)} - own):
                yield layers, option, start


def _fits(plan: Placement, layers: Collection[int]) -> bool:
    """Returns whether all layers have GPUs that nothing else uses at the same time, where only some are changed."""
    changed = set(layers)
    return all(
        _are_apart(plan, block) for block in branching_blocks(plan.tree) if not changed.isdisjoint(layers_of(block))
    )


def _are_apart(plan: Placement, block: ParallelBlock) -> bool:
    """Returns whether branches that share a GPU start on one, with no GPU of others between theirs.

    They are on GPUs of one node, or from the start of a node on. The bounds of all plans count no other groups.
    """
    cluster, ends = plan.costs.network.cluster, []
    for group in concurrent_branches(block, plan.gpus):
        branches = [block.branches[number] for number in group]
        used = [plan.gpus[layer] for branch in branches for layer in layers_of(branch)]
        first, last = min(gpus[0] for gpus in used), max(gpus[-1] for gpus in used)
        near = first // cluster.gpus_per_node == last // cluster.gpus_per_node or first % cluster.gpus_per_node == 0
        if last >= cluster.gpus or not near or {plan.starts[branch.layers[0]] for branch in branches} != {first}:
            return False
        ends.append((first, last))
    return all(one[1] < other[0] for one, other in itertools.pairwise(sorted(ends)))


def keep_limit(limit: float | None, plan: Placement, layers: Iterable[int]) -> bool:
    """Returns whether some layers keep a limit on the amplification of each."""
    single = plan.costs.compute[:, 0]
    return limit is None or all(
        amplification(plan.time(layer), plan.gpu_count(layer), float(single[layer])) <= limit * (1 + TOLERANCE)
        for layer in layers
    )

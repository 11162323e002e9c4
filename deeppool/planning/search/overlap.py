"""The fastest plan whose all-reduces overlap the backward pass (see ``schedule``), within the limit.

How much of an all-reduce is hidden depends on all layers, and so does which gradients share one. The search takes
what each layer's gradients add at least to the all-reduces of its GPUs: a large one is an all-reduce by itself,
a small one takes its share of the fastest all-reduce per byte that a bucket can be. Where layers run one
after another that is a flow shop, which labels solve exactly (see ``flow_shop``). Where branches may run side
by side there are candidates: the exact search for an iteration without overlap, in which all-reduces count
for several shares of their time, all layers on one GPU count, and the best plan in sequence. The schedule
times each, with its real buckets; the search ends where one is near to the bound. The limit always counts an
all-reduce of each layer by itself and in full.

How far from the optimum the best candidate can be follows from lower bounds. An iteration takes F + B or
longer, the forward and the backward pass with their transfers. All layers outside blocks of several
branches, those of regions among them, run on GPUs from GPU 0 on, whose channel has room for one of their
all-reduces at a time, S seconds together, and none starts before the forward pass ends. So an iteration takes
F + S or longer, and

    (1 - share) (F + B) + share (F + S) = F + (1 - share) B + share S

for any share from 0 to 1. Where the model starts with a single layer, its backward is the last and hides
nothing of its own all-reduce: F + B is longer by that, so it counts in full. The exact search finds a plan
for which the sum is least, and no plan takes less than that: the largest of these values is the bound. A share at
which a plan that is known already costs no more than the bound so far gives no larger one, and is not searched. The
bound does not count the all-reduces inside blocks of several branches, so it is loose for models such as Inception
where they dominate.

Where cores compute a share of an all-reduce (``sync_computing``), what runs beside one takes longer by that share of
it, and what is left at the end counts in full. On GPU 0, which is in every set, an iteration of layers in sequence
takes F + B + sync_computing x S or longer, so the sum is

    F + (1 - share) B + (share + (1 - share) sync_computing) S.

With branches side by side GPU 0 may wait for others meanwhile. But an all-reduce over all GPUs slows down whatever
runs, in a branch too: of these the share counts.

The update comes on top. In sequence every layer computes on GPU 0, which updates all parameters in any plan: a
constant. With branches side by side it takes as long as the mean over all GPUs or longer, and the search counts that:
each layer's update on g of N GPUs adds g / N of its seconds.
"""

from collections.abc import Iterator

import numpy as np

from deeppool.collectives.buckets import ALONE_BYTES, LARGEST_BUCKET
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import ParallelBlock, Series, decompose, layers_of, parts_of
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search.flow_shop import TooManyLabelsError, fastest_in_sequence
from deeppool.planning.search.labels import plan_of
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.optimality import certificate
from deeppool.planning.search.parallel_block import BlockSolver
from deeppool.planning.search.plan_price import price_of
from deeppool.planning.search.search import SearchResult, search

NEAR = 1.005
"""A plan whose time is within this factor of the bound is not improved: profiles are not as exact."""
SHARES = (0.25, 1.0)
"""Shares of the seconds of all-reduces that candidates count."""
BOUND_SHARES = (0.25, 0.5, 0.75, 0.95)
"""Shares for lower bounds, in addition to 0; the last one for networks so slow that little else counts."""


def search_overlapping(costs: CostTable, limit: float | None, *, proving: bool = True) -> SearchResult:
    """Returns the plan of least iteration time found under a per-layer amplification limit.

    All-reduces overlap, unless the costs say that they do not; the search is then the exact one.

    Args:
        costs: costs of layers and transfers.
        limit: limit on the amplification of each layer; None: no limit.
        proving: False: where there are blocks, takes the first plan found in them, or a uniform one, with its bound.
    """
    if not costs.overlap:
        return search(costs, limit, proving=proving)
    tree = decompose([layer.predecessors for layer in costs.graph.layers])
    first, bound = bounding_plan(costs, tree, limit, 0.0, proving=proving)
    uniform = list(uniform_plans(costs, limit))
    plans = [first, *uniform[:1], *uniform[-1:]]
    if not proving and any(tree.blocks):
        return _result(min(plans, key=_time), bound)
    sequential = not list(_side_by_side(tree))
    if sequential:
        best, least = _in_sequence(costs, tree, limit, min(plans, key=_time))
        plans, bound = [*plans, best], max(bound, least)
    if _time(min(plans, key=_time)) > bound * NEAR:
        plans += [*_candidates(costs, tree, limit), *uniform[1:-1]]
        if not sequential:
            plans.append(_in_sequence(costs, tree, limit, min(plans, key=_time))[0])
    best = min(plans, key=_time)
    for share in BOUND_SHARES:
        if _time(best) <= bound * NEAR:
            break
        prices = relaxed_costs(costs, tree, limit, share)
        if min(price_of(plan, prices) for plan in (first, best)) <= bound:
            # The search would find a plan that costs no more than these do, which is no better bound.
            continue
        other, least = _cheapest(tree, prices)
        best, bound = min(best, other, key=_time), max(bound, least)
    return _result(best, bound)


def _result(best: Placement, bound: float) -> SearchResult:
    return SearchResult(best.options, best.starts, _time(best), certificate(_time(best) / bound))


def _candidates(costs: CostTable, tree: Series, limit: float | None) -> list[Placement]:
    """Returns plans that are good where all-reduces count for a share of their time; nothing is proved of them."""
    synced = least_sync(costs)
    tried = [LimitedCosts(costs, limit, share * synced - costs.sync) for share in SHARES]
    # Less of the backward pass counts, too, where much of it hides all-reduces.
    tried += [relaxed_costs(costs, tree, limit, share) for share in SHARES[:1]]
    return [_cheapest(tree, prices, proving=False)[0] for prices in tried]


def _in_sequence(costs: CostTable, tree: Series, limit: float | None, best: Placement) -> tuple[Placement, float]:
    """Returns the better of a plan and the fastest one in sequence, and seconds that none in sequence can beat."""
    update = float(costs.update.sum())
    try:
        found = fastest_in_sequence(costs, least_sync(costs), list(layers_of(tree)), limit, _time(best) - update)
    except TooManyLabelsError:
        return best, 0.0
    if found is None:
        return best, _time(best)
    options, seconds = found
    return min(best, Placement(costs, options, (0,) * len(options)), key=_time), seconds + update


def bounding_plan(
    costs: CostTable, tree: Series, limit: float | None, share: float, *, proving: bool = True
) -> tuple[Placement, float]:
    """Returns the plan of least F + (1 - share) B + share S, as above, and seconds that no iteration can beat.

    Args:
        costs: costs of layers and transfers.
        tree: the layers as chains and branches.
        limit: limit on the amplification of each layer; None: no limit.
        share: share of the all-reduces, from 0 to below 1.
        proving: False: a plan of nearly the least, and a looser bound, in a fraction of the time.
    """
    return _cheapest(tree, relaxed_costs(costs, tree, limit, share), proving=proving)


def relaxed_costs(
    costs: CostTable,
    tree: Series,
    limit: float | None,
    share: float,
    work_price: float = 0.0,
    *,
    updates: bool = True,
) -> LimitedCosts:
    """Returns costs whose sum is F + (1 - share) B + share S + update + work_price x GPU-seconds, or more, as above.

    The GPU-seconds are those of layers, transfers and updates, and a plan's own are no fewer.
    """
    side_by_side = sorted(_side_by_side(tree))
    counted = np.full(costs.sync.shape, share)
    counted[side_by_side] = 0
    wide = np.array(costs.gpu_counts) == costs.network.cluster.gpus if side_by_side else True
    counted += (1 - share) * costs.network.sync_computing * wide
    if tree.blocks[0] is None:
        counted[tree.layers[0]] = 1
    extra = counted * least_sync(costs) - costs.sync - share * costs.backward
    # Half of a transfer is forward: it counts 1 + (1 - share) halves. Where branches are compared, pass by pass, the
    # search takes both halves to count alike, so there each counts as the one in backward, which is less.
    transfers = 1 - share if side_by_side else 1 - share / 2
    update_price = 1 / costs.network.cluster.gpus if updates and side_by_side else 0.0
    if updates and not side_by_side:
        extra = extra + costs.update[:, None]
    return LimitedCosts(costs, limit, extra, transfers, work_price=work_price, update_price=update_price)


def least_sync(costs: CostTable) -> Floats:
    """Returns (L, K) seconds that each layer's gradients add at least to the all-reduces of its GPUs."""
    sizes = np.array([layer.parameter_bytes for layer in costs.graph.layers])[:, None]
    per_byte = [costs.network.least_seconds_per_byte(count, LARGEST_BUCKET) for count in costs.gpu_counts]
    least: Floats = np.where(sizes >= ALONE_BYTES, costs.sync, sizes * np.array(per_byte))
    return least


def least_update(costs: CostTable, tree: Series) -> float:
    """Returns seconds that the update takes at least in any plan."""
    outside = np.ones(len(costs.update), dtype=bool)
    outside[sorted(_side_by_side(tree))] = False
    return max(float(costs.update[outside].sum()), float(costs.update.sum()) / costs.network.cluster.gpus)


def _time(plan: Placement) -> float:
    return plan.iteration_time


def _cheapest(tree: Series, limited: LimitedCosts, *, proving: bool = True) -> tuple[Placement, float]:
    """Returns the plan that the exact search finds, and what no plan costs less than."""
    found, lower = BlockSolver(limited, proving=proving).whole(tree)
    return Placement(limited.costs, *plan_of(found.parts)), lower


def uniform_plans(costs: CostTable, limit: float | None) -> Iterator[Placement]:
    """Yields plans with all layers on one GPU count: data parallelism, one GPU, and counts between; no transfers."""
    permitted = (LimitedCosts(costs, limit).room >= 0).all(axis=0)
    for option in np.nonzero(permitted)[0].tolist():
        layers = len(costs.graph.layers)
        yield Placement(costs, (option,) * layers, (0,) * layers)


def _side_by_side(tree: Series) -> Iterator[int]:
    """Yields the layers of blocks of several branches."""
    for part in parts_of(tree):
        if isinstance(part, ParallelBlock) and len(part.branches) > 1:
            yield from layers_of(part)

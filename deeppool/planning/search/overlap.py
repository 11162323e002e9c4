"""The fastest plan whose all-reduces overlap the backward pass (see ``schedule``), within the limit.

How much of an all-reduce is hidden depends on all layers, and so does which gradients share one. The first search
counts no all-reduces; where the plan it finds, or one with all layers on one GPU count, is near to its bound, that is
all. Else the fastest plan in sequence is found with its real buckets: a flow shop (see ``flow_shop``). Of many GPU
counts it drops ways, so those nearest to powers of two are searched by themselves, too. Where branches
may run side by side there are candidates besides: the exact search for an iteration without overlap, in which
all-reduces count for a share of their time, and where that leaves a gap in full. The schedule times each, with its real
buckets. The limit always counts an all-reduce of each layer by itself and in full. What is then far from the bound is
improved by small changes (see ``hill_climbing``).

How far from the optimum the best plan can be follows from the bound of the first search where that is within 1 %. Else
it follows from the flow shop, in which blocks of several branches may be side by side by what no way through them
beats. Of the all-reduces there it counts only those on GPU 0, so it is loose for models such as Inception where these
dominate.

The bound of the first search: an iteration takes F + B or longer, the forward and the backward pass with their
transfers. Where the model starts with a single layer, its backward is the last and hides nothing of its own all-reduce,
which counts in full. A small gradient takes its share of the fastest all-reduce per byte that a bucket can be. Where
cores compute a share of an all-reduce (``sync_computing``), what runs beside one takes longer by that share of it, and
what is left at the end counts in full. On GPU 0, which is in every set, an iteration of layers in sequence takes
F + B + sync_computing x S or longer, S for all all-reduces. With branches side by side GPU 0 may wait for others
meanwhile. But an all-reduce over all GPUs slows down whatever runs, in a branch too: of these the share counts.

The update comes on top. In sequence every layer computes on GPU 0, which updates all parameters in any plan: a
constant. With branches side by side it takes as long as the mean over all GPUs or longer, and the search counts that:
each layer's update on g of N GPUs adds g / N of its seconds.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from deeppool.costs.communication import SAME_START
from deeppool.costs.table import CostTable
from deeppool.graph.series_parallel import (
    INPUT,
    ParallelBlock,
    Series,
    branching_blocks,
    decompose,
    layers_of,
    parts_of,
)
from deeppool.planning.evaluate.placement import Placement, data_parallel
from deeppool.planning.search.block_bounds import BlockBounds
from deeppool.planning.search.flow_shop import fastest_in_sequence
from deeppool.planning.search.flow_shop_bounds import BoundedBlock
from deeppool.planning.search.flow_shop_labels import TooManyOptionsError
from deeppool.planning.search.hill_climbing import improve, keep_limit
from deeppool.planning.search.labels import plan_of
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.optimality import certificate
from deeppool.planning.search.parallel_block import BlockSolver
from deeppool.planning.search.search import SearchResult, search

NEAR = 1.005
"""A plan whose time is within this factor of the bound is not improved: profiles are not as exact."""
PROVED = 1.01
"""A bound within this factor of the plan's time is not improved, which would take longer than finding the plan."""
SHARE = 0.25
"""Share of the seconds of all-reduces that a candidate counts."""


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
    first, bound = bounding_plan(costs, tree, limit, proving=proving)
    plans = [first, *uniform_plans(costs, limit, _time(first))]
    if not proving and any(tree.blocks):
        return _result(min(plans, key=_time), bound)
    if _time(min(plans, key=_time)) > bound * NEAR:
        if any(branching_blocks(tree)):
            counted = LimitedCosts(costs, limit, SHARE * costs.least_sync - costs.sync)
            plans.append(_cheapest(tree, counted, proving=False)[0])
        in_sequence, bound = _by_flow_shop(costs, tree, limit, min(plans, key=_time), bound)
        plans.append(in_sequence)
        few = _near_powers(costs)
        if _time(in_sequence) > bound * NEAR and len(few) < len(costs.gpu_counts):
            # Of few counts the flow shop drops fewer ways.
            found = search_overlapping(costs.at(few), limit, proving=proving)
            plans.append(Placement(costs, tuple(few[option] for option in found.choices), found.starts))
    best = min(plans, key=_time)
    if _time(best) > bound * NEAR and any(branching_blocks(tree)):
        # A branch may have nothing to hide its all-reduces behind.
        paper = search(costs, limit)
        best = min(best, Placement(costs, paper.choices, paper.starts), key=_time)
    if _time(best) > bound * PROVED:
        best = improve([best], partial(keep_limit, limit), bound)
    return _result(best, bound)


def _near_powers(costs: CostTable) -> list[int]:
    """Returns the options nearest to powers of two, and the last one."""
    counts = np.array(costs.gpu_counts)
    powers = 2 ** np.arange(costs.gpu_counts[-1].bit_length())
    nearest = np.abs(counts - powers[:, None]).argmin(axis=1)
    return sorted({*nearest.tolist(), len(counts) - 1})


def _result(best: Placement, bound: float) -> SearchResult:
    return SearchResult(best.options, best.starts, _time(best), certificate(_time(best) / bound))


def _by_flow_shop(
    costs: CostTable, tree: Series, limit: float | None, best: Placement, bound: float
) -> tuple[Placement, float]:
    """Returns the better of a plan and the fastest one in sequence, and of a bound and one that counts all-reduces."""
    asked = costs, layers_of(tree), limit
    try:
        options, least = fastest_in_sequence(*asked, _time(best))
        if options is not None:
            best = min(best, Placement(costs, options, (0,) * len(options)), key=_time)
        if not any(branching_blocks(tree)):
            return best, max(bound, least)
        tails = any(isinstance(part, Series) and part.tail is not None for part in parts_of(tree))
        if _time(best) > bound * PROVED and not tails:
            # Half of a transfer is in the forward pass.
            summed = costs.forward + costs.least_sync - (costs.compute + costs.sync) / 2
            forward = LimitedCosts(costs, limit, summed, time_price=0.5)
            passes = relaxed_costs(costs, tree, limit, updates=False)
            solvers = [BlockSolver(prices, proving=False) for prices in (passes, forward)]
            blocks = dict(_bounded_blocks(solvers, tree, INPUT))
            _, bound = fastest_in_sequence(*asked, _time(best), blocks, bound)
    except TooManyOptionsError:
        pass
    return best, bound


def _bounded_blocks(solvers: Sequence[BlockSolver], series: Series, fork: int) -> Iterator[tuple[int, BoundedBlock]]:
    """Yields the blocks whose branches may run side by side on all GPUs, by their joins.

    Args:
        solvers: searches by both passes, and by the forward pass and all-reduces.
        series: layers and blocks.
        fork: layer before them.
    """
    for layer, block in zip(series.layers, series.blocks, strict=True):
        if isinstance(block, ParallelBlock):
            if len(block.branches) > 1:
                steps = (solver.step(block, fork, layer, ((solver.gpus, SAME_START),))[0] for solver in solvers)
                bounds, summed = (part for step in steps for part in step.parts if isinstance(part, BlockBounds))
                # All-reduces of branches side by side within a branch are not one after another.
                again = any(map(branching_blocks, block.branches))
                yield layer, BoundedBlock(fork, *bounds.side_by_side(None if again else summed))
            for branch in block.branches:
                yield from _bounded_blocks(solvers, branch, fork)
        fork = layer


def bounding_plan(
    costs: CostTable, tree: Series, limit: float | None, *, proving: bool = True
) -> tuple[Placement, float]:
    """Returns the plan of least F + B, as above, and seconds that no iteration can beat.

    Args:
        costs: costs of layers and transfers.
        tree: the layers as chains and branches.
        limit: limit on the amplification of each layer; None: no limit.
        proving: False: a plan of nearly the least, and a looser bound, in a fraction of the time.
    """
    return _cheapest(tree, relaxed_costs(costs, tree, limit), proving=proving)


def relaxed_costs(
    costs: CostTable,
    tree: Series,
    limit: float | None,
    work_price: float = 0.0,
    *,
    updates: bool = True,
) -> LimitedCosts:
    """Returns costs whose sum is F + B + update + work_price x GPU-seconds, or more, as above.

    The GPU-seconds are those of layers, transfers and updates, and a plan's own are no fewer.
    """
    side_by_side = _layers_side_by_side(tree)
    wide = np.array(costs.gpu_counts) == costs.network.cluster.gpus if side_by_side else True
    counted = np.zeros(costs.sync.shape) + costs.network.sync_computing * wide
    if tree.blocks[0] is None:
        counted[tree.layers[0]] = 1
    extra = counted * costs.least_sync - costs.sync
    update_price = 1 / costs.network.cluster.gpus if updates and side_by_side else 0.0
    if updates and not side_by_side:
        extra = extra + costs.update[:, None]
    return LimitedCosts(costs, limit, extra, work_price=work_price, update_price=update_price)


def least_update(costs: CostTable, tree: Series) -> float:
    """Returns seconds that the update takes at least in any plan."""
    outside = np.ones(len(costs.update), dtype=bool)
    outside[_layers_side_by_side(tree)] = False
    return max(float(costs.update[outside].sum()), float(costs.update.sum()) / costs.network.cluster.gpus)


def _time(plan: Placement) -> float:
    return plan.iteration_time


def _cheapest(tree: Series, limited: LimitedCosts, *, proving: bool = True) -> tuple[Placement, float]:
    """Returns the plan that the exact search finds, and what no plan costs less than."""
    found, lower = BlockSolver(limited, proving=proving).whole(tree)
    return Placement(limited.costs, *plan_of(found.parts)), lower


def uniform_plans(costs: CostTable, limit: float | None, at_most: float = math.inf) -> Iterator[Placement]:
    """Yields plans with all layers on one GPU count: data parallelism, one GPU, and counts between; no transfers.

    Args:
        costs: costs of layers.
        limit: limit on the amplification of each layer; None: no limit.
        at_most: plans whose layers alone take so many seconds are left out.
    """
    permitted = (LimitedCosts(costs, limit).room >= 0).all(axis=0) & (costs.compute.sum(axis=0) < at_most)
    for option in np.nonzero(permitted)[0].tolist():
        yield data_parallel(costs, option)


def _layers_side_by_side(tree: Series) -> list[int]:
    """Returns the layers of blocks of several branches."""
    return sorted({layer for block in branching_blocks(tree) for layer in layers_of(block)})

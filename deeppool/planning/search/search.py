"""The exact search: the least iteration time among the plans that keep the amplification limit.

DeepPool's Algorithm 1 fixes the best predecessor before it checks the limit, so it can miss the
optimum and exceed the limit. But the amplification of a layer depends only on the edge into it,

    Amp(i, h -> g) = (comm(h -> g) + comp(i, g) + sync(i, g)) x g / comp(i, 1),

so dropping the edges over the limit leaves a plain shortest path: exact, at the same complexity,
O(layers x counts^2). Everything on one GPU has amplification 1, so a plan always exists.

Branches run side by side on a partition of the GPUs (see ``gpu_partition``) or one after another, whichever is
faster. Fork-to-join blocks start with a lower-bound cost, refined when the path uses them (see ``parallel_block``).
The search takes the shortest path, evaluates the blocks on it, and repeats until all blocks on the shortest path
are evaluated: no other path can then be shorter. Regions that are not series-parallel are solved by
variable elimination and local search (see ``local_search``); a plan with such a region states how far from its lower
bound it is, and so does one whose proof of optimality takes too long.

Layers of equal signature cost the same, so equal parts of a model are solved once.
"""

from dataclasses import dataclass

import numpy as np

from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import decompose
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search.labels import plan_of
from deeppool.planning.search.limited_costs import ROUNDING, LimitedCosts
from deeppool.planning.search.optimality import certificate
from deeppool.planning.search.parallel_block import BlockSolver


@dataclass(frozen=True, slots=True)
class SearchResult:
    """GPU count and first GPU of every layer, with the time and the claim of optimality."""

    choices: tuple[int, ...]
    """Index into ``gpu_counts`` of each layer."""
    starts: tuple[int, ...]
    """First GPU of each layer."""
    iteration_time: float
    optimality: str
    """``exact``, or ``bound x``: at most x times the optimum."""


def search(
    costs: CostTable,
    limit: float | None,
    extra: Floats | None = None,
    *,
    side_by_side: bool = True,
    proving: bool = True,
) -> SearchResult:
    """Returns the plan of least iteration time under a per-layer amplification limit.

    Args:
        costs: costs of layers and transfers.
        limit: limit on the amplification of each layer; None: no limit.
        extra: (L, K) seconds that the search adds to each layer's time when it compares plans; neither the
            limit nor ``SearchResult.iteration_time`` counts them, and optimality is claimed of the sum.
        side_by_side: whether branches may run on GPU groups of their own.
        proving: False: takes the ways through blocks that are found first, in a fraction of the time.
    """
    solver = BlockSolver(LimitedCosts(costs, limit, extra), side_by_side=side_by_side, proving=proving)
    best, lower = solver.whole(decompose([layer.predecessors for layer in costs.graph.layers]))
    options, starts = plan_of(best.parts)
    time = best.time if extra is None else Placement(costs, options, starts).iteration_time
    return SearchResult(options, starts, time, certificate(best.time / lower))


def search_partitions(costs: CostTable, choices: tuple[int, ...], limit: float | None) -> SearchResult:
    """Returns the fastest GPU partitions for given GPU counts; the counts themselves may be far from the optimum.

    A partition brings no layer over the limit that would keep it on the first GPUs, and none further over it.
    """
    others = np.ones(costs.compute.shape, dtype=bool)
    others[np.arange(len(choices)), choices] = False
    in_sequence = Placement(costs, choices, (0,) * len(choices))
    incoming = np.array([[in_sequence.incoming(layer)] for layer in range(len(choices))])
    limited = LimitedCosts(costs, limit, np.where(others, np.inf, 0.0), least_room=incoming * (1 + ROUNDING))
    best, _ = BlockSolver(limited).whole(decompose([layer.predecessors for layer in limited.layers]))
    # In a large region only ways with one count for all layers are looked for.
    options, starts = plan_of(best.parts) if best.parts else (choices, in_sequence.starts)
    return SearchResult(options, starts, Placement(costs, options, starts).iteration_time, "heuristic")

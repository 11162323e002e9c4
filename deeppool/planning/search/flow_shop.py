"""The fastest plan of layers in sequence whose all-reduces overlap the backward pass: a flow shop.

Where no branches run side by side, every set of GPUs starts at the same GPU, whose channel all all-reduces
pass in the order of the backward pass. Layers and all-reduces are then the two machines of a flow shop with
a given order of jobs. From the last layer to the first, in the order of the backward pass, only two numbers
so far matter: the seconds that its layers and transfers take, in both passes, and the
*lag*, by which the end of its all-reduces comes after that of its backward.

    a layer        seconds + forward + backward      lag = max(lag - backward, 0) + sync
    its transfers  seconds + reshard                 lag = max(lag - reshard / 2, 0)

Where cores compute a share of an all-reduce, a layer or a transfer of x seconds hides y = min(lag, x / (1 - share)) of
the lag, which is then lag - y, and takes share x y longer.

The iteration takes seconds + lag. Both steps keep the order of two lags, so of two ways with equal GPU
counts where they go on, one with more seconds and no less lag can be dropped: labels of Pareto fronts, as
for shortest paths with two costs. Exact; without a bound on how many labels there are, but few in practice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deeppool.costs.table import CostTable, Floats
from deeppool.planning.search.limited_costs import ROUNDING, LimitedCosts
from deeppool.planning.search.pareto import Integers, efficient_rows

MOST_LABELS = 1_000_000
"""Most labels at any one layer; that takes about a second."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Weights of the lag in the bounds by which labels are dropped."""


class TooManyLabelsError(Exception):
    """Raised where the proof of optimality would take too long."""


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """Labels of the layers from one on to the last; no label with the same options dominates another one."""

    pending: tuple[int, ...]
    """Earlier layers whose options are chosen: those that the layers so far read."""
    options: Integers
    """(way, pending) chosen options."""
    seconds: Floats
    lag: Floats
    parent: Integers
    """Index of the way that each way continues."""


def fastest_in_sequence(
    costs: CostTable, sync: Floats, order: Sequence[int], limit: float | None, at_most: float
) -> tuple[tuple[int, ...], float] | None:
    """Returns the options of least iteration time for layers in sequence, all-reduces overlapping.

    Args:
        costs: seconds.
        sync: (L, K) seconds of each layer's all-reduce.
        order: order of the layers in a forward pass.
        limit: limit on each layer's amplification, its all-reduce counted in full; None: no limit.
        at_most: seconds of a plan that is known.

    Returns:
        Per layer the index of its GPU count, and the seconds; None where no plan is faster than the known one.

    Raises:
        TooManyLabelsError: there are more than MOST_LABELS ways to go on from some layer.
    """
    prices = LimitedCosts(costs, limit)
    count = len(costs.gpu_counts)
    start = np.zeros(count)
    labels = _Labels((order[-1],), np.arange(count)[:, None], start, start, np.arange(count))
    history = [labels]
    for layer, rest in zip(reversed(order), _rests(costs, sync, order, prices), strict=True):
        labels = _before(labels, layer, costs, sync, prices, rest, at_most * (1 - ROUNDING))
        if not len(labels.seconds):
            return None
        history.append(labels)
    ends = labels.seconds + labels.lag
    return _trace(history, int(ends.argmin())), float(ends.min())


def _rests(costs: CostTable, sync: Floats, order: Sequence[int], prices: LimitedCosts) -> Floats:
    """Returns (layer, share) seconds + share x lag that earlier layers add at least, the last layer first.

    A layer adds forward + backward to the seconds and takes at most backward - sync off the lag; transfers
    take at most half of what they add. And the iteration takes seconds + lag, so seconds + share x lag or more.
    """
    shares = np.array(SHARES)[:, None, None]
    weights = _weights(costs)[:, None, None]
    added = costs.forward + (1 - shares) * costs.backward + weights * sync
    least = np.where(prices.room >= 0, added, np.inf).min(axis=2)[:, list(order)]
    rests: Floats = (np.cumsum(least, axis=1) - least).T[::-1]
    return rests


def _before(
    labels: _Labels, layer: int, costs: CostTable, sync: Floats, prices: LimitedCosts, rest: Floats, at_most: float
) -> _Labels:
    """Adds a layer and its transfers to all ways, for all options of what it reads; drops those over ``at_most``."""
    sources = costs.graph.layers[layer].predecessors
    chosen = tuple(source for source in sources if source not in labels.pending)
    count = len(costs.gpu_counts)
    if len(labels.seconds) * count ** len(chosen) > MOST_LABELS:
        raise TooManyLabelsError
    grid = np.indices((count,) * len(chosen)).reshape(len(chosen), count ** len(chosen)).T
    parent = np.repeat(np.arange(len(labels.seconds)), len(grid))
    options = np.hstack([labels.options[parent], np.tile(grid, (len(labels.seconds), 1))])
    pending = labels.pending + chosen
    here = options[:, pending.index(layer)]
    moved = np.zeros(len(parent))
    for source in sources:
        moved = moved + prices.move(source, layer)[options[:, pending.index(source)], here]
    backward, computing = costs.backward[layer, here], costs.network.sync_computing
    computed = _beside(labels.lag[parent], backward, computing)
    lag = labels.lag[parent] - computed + sync[layer, here]
    sent = _beside(lag, moved / 2, computing)
    lag = lag - sent
    seconds = labels.seconds[parent] + costs.forward[layer, here] + backward + moved + computing * (computed + sent)
    least = np.max(seconds + np.multiply.outer(_weights(costs), lag) + rest[:, None], axis=0)
    kept = np.nonzero((moved <= prices.room[layer, here]) & (least < at_most))[0]
    left = [index for index, other in enumerate(pending) if other != layer]
    options = options[:, left]
    kept = kept[efficient_rows(options[kept] @ count ** np.arange(len(left)), seconds[kept], lag[kept])]
    return _Labels(tuple(pending[index] for index in left), options[kept], seconds[kept], lag[kept], parent[kept])


def _beside(lag: Floats, seconds: Floats, computing: float) -> Floats:
    """Returns the seconds of the lag that pass beside what takes ``seconds`` by itself."""
    if computing == 1:
        return np.where(seconds > 0, lag, 0.0)
    passed: Floats = np.minimum(lag, seconds / (1 - computing))
    return passed


def _weights(costs: CostTable) -> Floats:
    """Returns per share the weight of the lag: of what is left to all-reduce, cores compute at least their share."""
    shares, computing = np.array(SHARES), costs.network.sync_computing
    weights: Floats = shares + (1 - shares) * computing
    return weights


def _trace(history: list[_Labels], way: int) -> tuple[int, ...]:
    """Returns the option of each layer of a way, from the labels after each layer, the last layer's first."""
    options: dict[int, int] = {}
    for labels in reversed(history):
        options.update(zip(labels.pending, labels.options[way].tolist(), strict=True))
        way = int(labels.parent[way])
    return tuple(option for _, option in sorted(options.items()))

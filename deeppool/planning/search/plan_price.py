"""Price of a given plan under the costs of a search, for all its layers and transfers."""

from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.evaluate.timing import pass_duration
from deeppool.planning.search.limited_costs import LimitedCosts


def price_of(plan: Placement, prices: LimitedCosts) -> float:
    """Returns what the search would pay for a plan: at least the price of the plan that it finds.

    Args:
        plan: GPUs of every layer, within the limit of the prices.
        prices: prices of layers and transfers.
    """
    forward, backward, added = zip(*(_passes(plan, prices, layer) for layer in range(len(plan.options))), strict=True)
    passes = (pass_duration(plan.tree, plan.gpus, seconds.__getitem__) for seconds in (forward, backward))
    total: float = sum(added) + sum(passes)
    return total


def _passes(plan: Placement, prices: LimitedCosts, layer: int) -> tuple[float, float, float]:
    """Returns the price of a layer's forward and backward pass with its transfers, and of its GPU-seconds."""
    option = plan.options[layer]
    moved = plan.incoming(layer) * float(prices.weight[option])
    spent = moved * float(prices.spent_share[option])
    added = spent + float(prices.added[layer, option])
    forward = (moved - spent) / 2 + float(prices.forward[layer, option])
    return forward, moved + float(prices.own[layer, option]) - forward - added, added

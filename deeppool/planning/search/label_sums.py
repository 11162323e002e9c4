"""Efficient sums of labels along the steps of a model."""

from collections.abc import Callable, Iterable, Sequence

from deeppool.base import cancellation
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.pareto import EMPTY_PLAN, Front, combine, single
from deeppool.planning.search.shortest_path import PartialPlan, Step

Labels = Callable[[int, int, int], Iterable[PartialPlan]]
"""Ways through a step, by its position and the GPU counts before and after it."""
Plans = tuple[tuple[int, ...], tuple[int, ...]]
"""Per layer, the index of its GPU count, and its first GPU."""


def efficient_sums(steps: Sequence[tuple[Step, int]], prices: LimitedCosts, labels: Labels, most: int) -> Front:
    """Returns the efficient sums of a label of each step, in seconds and GPU-seconds; at most ``most`` at each layer.

    Args:
        steps: steps of the model, each with the offset to add to its layers.
        prices: costs of the labels, with prices of a second and of a GPU-second.
        labels: of each step.
        most: points to keep.
    """
    fronts = {0: EMPTY_PLAN}
    for position, (_, layers) in enumerate(steps):
        cancellation.check()
        pairs: dict[int, list[tuple[Front, Front]]] = {}
        for after in range(len(prices.gpu_counts)):
            for before, way in fronts.items():
                for label in labels(position, before, after):
                    time = (label.time - label.added) / prices.time_price
                    made = single(time, label.added / prices.work_price, (label, layers))
                    pairs.setdefault(after, []).append((way, made))
        fronts = {after: combine(found, most) for after, found in pairs.items()}
    return combine([(front, EMPTY_PLAN) for front in fronts.values()], most)


def plan_of(front: Front, point: int) -> Plans:
    """Returns the plan behind a point."""
    choices = sorted(front.trace(point))
    return tuple(choice.option for choice in choices), tuple(choice.start for choice in choices)

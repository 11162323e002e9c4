"""Hill climbing from a plan: layers on other GPU counts, one or several in a row, while an iteration becomes faster.

It follows a search whose plan may be far from the optimum. Each change is timed by the schedule, with the buckets of a
run and the all-reduces of branches that run side by side, of which the search itself knows less. First GPUs stay.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from deeppool.base import cancellation
from deeppool.costs.amplification import TOLERANCE, amplification
from deeppool.planning.evaluate.placement import Placement

MOST_TIMED = 200_000
"""Layers to time at most, of all changes together."""
LEAST_GAIN = 1e-4
"""Relative gain from which a change is made."""


Permitted = Callable[[Placement, Iterable[int]], bool]
"""Returns whether a plan is permitted, given the layers that take another time than in one that is."""


def climb(plan: Placement, permitted: Permitted) -> Placement:
    """Returns a plan that no small change makes faster, or the best one of the changes that are tried.

    Args:
        plan: where to start; it is permitted.
        permitted: whether a change is.
    """
    left, number = MOST_TIMED // len(plan.options), -1
    while number:
        number = 0
        for layers, option in list(_changes(plan.options, len(plan.costs.gpu_counts))):
            if not left:
                return plan
            other = plan.with_option(layers, option)
            changed = {*layers, *(reader for layer in layers for reader in plan.readers[layer])}
            free = all(other.gpu_count(layer) <= plan.free_widths[layer] for layer in layers)
            if other.options == plan.options or not free or not permitted(other, changed):
                continue
            cancellation.check()
            left -= 1
            if other.iteration_time < plan.iteration_time * (1 - LEAST_GAIN):
                plan, number = other, number + 1
    return plan


def _changes(options: tuple[int, ...], count: int) -> Iterator[tuple[range, int]]:
    """Yields layers and another option for them: the next one up or down, or that of a layer before or after them."""
    runs, end = [], 0
    for _, run in groupby(options):
        end, start = end + len(list(run)), end
        runs.append(range(start, end))
    for layers in [*(run for run in runs if len(run) > 1), *(range(layer, layer + 1) for layer in range(len(options)))]:
        option = options[layers[0]]
        beside = options[max(layers[0] - 1, 0)], options[min(layers[-1] + 1, len(options) - 1)]
        for other in sorted({option - 1, option + 1, *beside} - {option, -1, count}):
            yield layers, other


def keep_limit(limit: float | None, plan: Placement, layers: Iterable[int]) -> bool:
    """Returns whether some layers keep a limit on the amplification of each."""
    single = plan.costs.compute[:, 0]
    return limit is None or all(
        amplification(plan.time(layer), plan.gpu_count(layer), float(single[layer])) <= limit * (1 + TOLERANCE)
        for layer in layers
    )
